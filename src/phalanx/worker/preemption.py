"""SIGTERM and SIGUSR1 while training handles them: a request to save and stop, not the end.

    with guard():
        while training:
            step()
            if is_requested(): ...

A Python handler does not run while the main thread waits in a collective. What the signal
leaves in the wakeup descriptor is read by a thread, so the request is known at once, and a second
signal ends the process at once, wherever it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from phalanx.launcher.preemption import SIGNALS

SAME_SIGNAL_SECONDS = 5.0
"""Signals within this time are one request: schedulers signal launcher and workers."""

_END = b"\0"
"""What ends the thread that reads the numbers of signals; no signal has number 0."""


class Preemption:
    """Whether this process was asked to save and stop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] | None = None,
    ) -> None:
        """Start without a request.

        Args:
            clock: seconds, increasing.
            end: ends this process by a signal.
        """
        self._clock = clock
        self._end = end or _end_by
        self._requested: float | None = None
        self._listeners = 0
        self._handled: list[signal.Signals] = []
        self._ignored: set[signal.Signals] = set()
        os.register_at_fork(after_in_child=self._in_child)

    def is_requested(self) -> bool:
        """Whether training should save and stop."""
        return self._requested is not None

    def request(self) -> None:
        """Ask for it, as a signal does."""
        if self._requested is None:
            self._requested = self._clock()

    def clear(self) -> None:
        """Withdraw the request."""
        self._requested = None
        if self._listeners == 0 and threading.current_thread() is threading.main_thread():
            for number in list(self._ignored):
                self._hand_back(number)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Take signals as requests for the length of a block; blocks may be nested.

        A script's own handlers stay in force. Outside the main thread there is nothing that
        Python lets us do, and signals end the process as before.
        """
        with ExitStack() as undo:
            if threading.current_thread() is threading.main_thread():
                if self._listeners == 0:
                    self._install(undo)
                self._listeners += 1
                undo.callback(self._leave)
            yield

    def take(self, number: int) -> None:
        """What a signal means now."""
        if self._listeners == 0:
            self._end(number)
        elif self._requested is None:
            self.request()
        elif self._clock() - self._requested >= SAME_SIGNAL_SECONDS:
            self._end(number)

    def _leave(self) -> None:
        self._listeners -= 1

    def _in_child(self) -> None:
        """A child forked for data is ended by SIGTERM, and its signals are not requests to us."""
        if self._listeners:
            signal.set_wakeup_fd(-1)
            for number in self._handled:
                signal.signal(number, signal.SIG_DFL)

    def _install(self, undo: ExitStack) -> None:
        free = [
            number
            for number in SIGNALS
            if number in self._ignored or signal.getsignal(number) == signal.SIG_DFL
        ]
        if not free:
            return
        reading, writing = os.pipe()
        for fd in (reading, writing):
            os.set_blocking(fd, fd == reading)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        thread = threading.Thread(
            target=_read, args=(reading, self.take, before), name="phalanx-preemption", daemon=True
        )
        thread.start()
        undo.callback(os.close, writing)
        undo.callback(thread.join)
        # Not the end of the file: children forked meanwhile hold the writing end, too.
        undo.callback(os.write, writing, _END)
        undo.callback(signal.set_wakeup_fd, before, warn_on_full_buffer=False)
        self._handled = free
        for number in free:
            # Set now and not earlier: TensorFlow, when it makes a strategy, sets its own.
            signal.signal(number, _only_wake)
            undo.callback(self._hand_back, number)

    def _hand_back(self, number: signal.Signals) -> None:
        """Restore the handlers; training that stopped for a request is not ended.

        Slurm signals this process too, so it may have saved and be exiting when the launcher
        signals it. Python disables its own handlers during exit, and not this one.
        """
        if self._requested is None:
            self._ignored.discard(number)
            signal.signal(number, signal.SIG_DFL)
        else:
            self._ignored.add(number)
            signal.signal(number, signal.SIG_IGN)


def _only_wake(number: int, frame: object) -> None:
    """Python writes the number to the wakeup descriptor; the thread does the rest."""


def _read(reading: int, take: Callable[[int], None], others: int) -> None:
    """Hand on the numbers of signals until `_END`."""
    with os.fdopen(reading, "rb", buffering=0) as stream:
        while numbers := stream.read(64):
            for number in numbers:
                if number == _END[0]:
                    return
                if number in SIGNALS:
                    take(number)
                elif others >= 0:
                    with suppress(OSError):
                        os.write(others, bytes([number]))


def _end_by(number: int) -> None:
    """End by a signal as if it were not handled; `signal.signal` is for the main thread."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)


_own = Preemption()
guard = _own.guard
is_requested = _own.is_requested
request = _own.request
clear = _own.clear
