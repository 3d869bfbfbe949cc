"""This process's flight recorder: phases, steps and collectives record in it what is active.

It costs a microsecond or two for each record, and nothing without a run directory. What a
step does within its graph is invisible here, with one exception: `BatchArrivals`
(`training/batch_arrivals.py`) show which batches had come.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from pathlib import Path

from phalanx.monitoring.flight_format import NOTHING, Ending, Kind
from phalanx.monitoring.flight_ring import Ring
from phalanx.monitoring.mapped_pages import open_pages
from phalanx.monitoring.recorded_spans import BatchArrivals, RecordedSpan, SpanListener

_log = logging.getLogger(__name__)
_SECONDS = 1.0
"""Between two looks of the recorder's thread."""

_SHORT = 100_000
"""Nanoseconds: a phase that was shorter leaves no event."""

_BETWEEN = "idle"
"""The phase between two calls, such as two `fit`s. It leaves an event however short it was: what
came before it is another call's."""

_REST = 100_000_000
"""Nanoseconds between two questions for arrivals, which take some ten microseconds each."""


class FlightRecorder:
    """Writes down what this process does; until `open` it does nothing."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self._ring: Ring | None = None
        self._lock = threading.Lock()
        self._phase: tuple[int, int, int, int] | None = None
        self._read_at = 0
        self._under_way: list[RecordedSpan] = []
        self._step = 0
        self._epoch = NOTHING
        self._closed = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether anything is written."""
        return self._ring is not None

    def open(self, path: Path, *, rank: int, attempt: int, workers: int) -> None:
        """Write to `path` from now on; a disk that is full is said once, and ends no training."""
        try:
            pages = open_pages(path)
        except OSError as error:
            _log.warning("cannot write the flight recorder, training continues without: %s", error)
            return
        self._pages = pages
        ring = Ring(pages)
        host = socket.gethostname()
        ring.introduce(rank=rank, attempt=attempt, workers=workers, pid=os.getpid(), host=host)
        self._ring, self._phase, self._step, self._epoch = ring, None, 0, NOTHING
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="phalanx-flight", daemon=True)
        self._thread.start()
        self.phase("start")

    def close(self) -> None:
        """The process comes to its end on its own; nothing is written any more."""
        ring, self._ring = self._ring, None
        if ring is None:
            return
        self._closed.set()
        self._thread.join(timeout=_SECONDS)
        with self._lock:
            self._end_phase(ring, ring.clock())
            ring.alive(ended=True)
        self._pages.close()

    def phase(self, name: str) -> None:
        """A phase begins, which ends the one before."""
        if (ring := self._ring) is None:
            return
        with self._lock:
            self._end_phase(ring, now := ring.clock())
            number, step = ring.text(name), self._step or NOTHING
            self._phase = (number, now, step, self._epoch)
            ring.now(*self._phase)

    def _end_phase(self, ring: Ring, now: int) -> None:
        """Add the phase that ends now, unless it was too short to matter."""
        if self._phase is None:
            return
        number, begin, step, epoch = self._phase
        if now - begin >= _SHORT or number == ring.text(_BETWEEN):
            ring.phase(number, begin, now, step, epoch)

    def at(self, step: int | None, epoch: int | None) -> None:
        """How far training is."""
        self._step = self._step if step is None else step
        self._epoch = self._epoch if epoch is None else epoch

    def execution(
        self, kind: Kind, steps: int = 1, arrivals: BatchArrivals | None = None
    ) -> RecordedSpan:
        """Steps, for the length of a block.

        Args:
            kind: what they do.
            steps: how many.
            arrivals: records which of their batches came; None where that is not recorded.
        """
        return RecordedSpan(self, kind, steps=steps, arrivals=arrivals)

    def collective(self, name: str, size: int) -> RecordedSpan:
        """A collective, for the length of a block: it sends `size` bytes from here."""
        return RecordedSpan(self, "collective", name, size=size)

    def on_begin(self, block: RecordedSpan) -> None:
        """A block of steps or a collective begins."""
        if (ring := self._ring) is None:
            return
        is_train = block.kind == "train"
        step = self._step + is_train if self._step or is_train else NOTHING
        with self._lock:
            block.event = ring.begin(
                block.kind,
                ring.text(block.name),
                step=step,
                epoch=self._epoch,
                steps=block.steps,
                size=block.size,
                done=NOTHING if block.arrivals is None else 0,
            )
        self._under_way.append(block)

    def on_end(self, block: RecordedSpan, how: Ending, done: int | None) -> None:
        """It has ended."""
        ring, event = self._ring, block.event
        if event is None:
            return
        listener = self._poll_arrivals(block) if ring is not None else None
        self._under_way.remove(block)
        if block.kind == "train" and how == "done":
            self._step += block.steps if done is None else done
        if ring is not None:
            with self._lock:
                block.take(listener, ring)
                ring.end(event, how)

    def _poll_arrivals(self, block: RecordedSpan) -> SpanListener | None:
        """Which batches came, where steps are not so short that asking would count."""
        if block.arrivals is None or block.event is None:
            return None
        if (now := time.monotonic_ns()) - self._read_at < _REST:
            block.event.done = NOTHING
            return None
        self._read_at = now
        return block.ask()

    def _watch(self) -> None:
        closed = self._closed
        while not closed.wait(_SECONDS):
            try:
                self._poll()
            except Exception:  # It is an onlooker: whatever it finds, training continues.
                _log.debug("the flight recorder could not look", exc_info=True)

    def _poll(self) -> None:
        """Say that the process lives; see which batches came for steps that take long."""
        ring, under_way = self._ring, self._under_way[-1:]
        if ring is None:
            return
        ring.alive()
        for block in under_way:
            listener = block.ask()  # Not under the lock: training must not wait for it.
            with self._lock:
                if block in self._under_way and block.event is not None:
                    block.take(listener, ring)
                    ring.write(block.event)
        self._pages.publish()


flight = FlightRecorder()
"""This process's own."""
