"""A worker's heartbeat: what it is doing, every two seconds, from a thread of its own.

The thread touches neither TensorFlow nor Keras, so it beats while the main thread compiles,
computes or waits for a peer. A heartbeat that stops means that the process is gone or that
something holds Python's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from phalanx.worker.journal import Journal
from phalanx.worker.memory import resident_bytes
from phalanx.worker.pulse import Pulse

SECONDS = 2.0
"""Between two beats."""


class Heartbeat:
    """Writes `heartbeat` records until it is closed or the process ends."""

    def __init__(
        self,
        journal: Journal,
        pulse: Pulse,
        *,
        wait: Callable[[float], bool] | None = None,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        """Get ready; `start` begins.

        Args:
            journal: where the records go.
            pulse: what the process is doing.
            wait: lets so many seconds pass; True when no further beat is wanted.
            memory: the bytes that the process holds.
        """
        self._journal = journal
        self._pulse = pulse
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._memory = memory
        self._thread = threading.Thread(target=self._run, name="phalanx-heartbeat", daemon=True)

    def start(self) -> Self:
        """Write the first beat now, the others from the thread."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Write no more."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        self._beat()
        while not self._wait(SECONDS):
            self._beat()

    def _beat(self) -> None:
        now = self._pulse.beat()
        self._journal.write(
            "heartbeat",
            phase=now.phase,
            phase_seconds=round(now.seconds, 3),
            step=now.step,
            epoch=now.epoch,
            memory_bytes=self._memory(),
        )
