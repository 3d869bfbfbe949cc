"""Watch a gang until it has ended: one failure, or one signal to us, ends all of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.launch.failure import FailureRecord
from phalanx.launch.process import WorkerHandle
from phalanx.launch.rootcause import Ending


class Clock(Protocol):
    """Time, handed in so that tests need none."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Let that much time pass."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long the supervisor waits for what, in seconds.

    Attributes:
        poll: between two looks at the gang.
        settle: after a failure that looks like a consequence, for its cause to show.
        leave: for a worker that wrote down its failure to end by itself.
        grace: between SIGTERM and SIGKILL.
    """

    poll: float = 0.05
    settle: float = 2.0
    leave: float = 10.0
    grace: float = 3.0


@dataclass(kw_only=True)
class Supervisor:
    """Ends a gang together.

    Attributes:
        handles: the workers, by rank.
        failure_of: reads what a worker wrote down about its failure.
        clock: the time.
        interrupted: the signals that reached the launcher so far.
        on_poll: called at every look, such as to show the workers' output.
        patience: how long to wait for what.
    """

    handles: Mapping[int, WorkerHandle]
    failure_of: Callable[[int], FailureRecord | None]
    clock: Clock
    interrupted: Callable[[], int] = lambda: 0
    on_poll: Callable[[], None] = lambda: None
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        self._endings: dict[int, Ending] = {}
        self._told: set[int] = set()

    def run(self) -> list[Ending]:
        """Wait for the end of every worker and say how each ended, by rank.

        Whatever is raised in between, no worker is left behind.
        """
        try:
            if not self._until_done_or_failed():
                self._stop()
        finally:
            self._kill()
        return [self._endings[rank] for rank in sorted(self._endings)]

    def _until_done_or_failed(self) -> bool:
        """True when all ended well; False at the moment from which the rest must end."""
        settled = ended = float("inf")
        while True:
            self._look()
            if self.interrupted():
                return False
            failures = self._failures()
            if any(not ending.is_consequence for ending in failures):
                return False
            if len(self._endings) == len(self.handles):
                return True
            now = self.clock.now()
            if failures:
                settled = min(settled, now + self.patience.settle)
            if any(map(self.failure_of, self._running())):
                # It said that it failed but does not end: something holds it up.
                ended = min(ended, now + self.patience.leave)
            if now >= min(settled, ended):
                return False
            self.clock.sleep(self.patience.poll)

    def _stop(self) -> None:
        """SIGTERM to all, then wait; a second signal to the launcher cuts the wait short."""
        signals_so_far = self.interrupted()
        for rank in self._running():
            self._told.add(rank)
            self.handles[rank].signal(signal.SIGTERM)
        deadline = self.clock.now() + self.patience.grace
        while self._running() and self.clock.now() < deadline:
            if self.interrupted() > signals_so_far:
                return
            self.clock.sleep(self.patience.poll)
            self._look()

    def _kill(self) -> None:
        """SIGKILL to whoever is left, and collect them all."""
        for rank in self._running():
            self._told.add(rank)
            self.handles[rank].signal(signal.SIGKILL)
        while self._running():
            self._look()
            if self._running():
                self.clock.sleep(self.patience.poll)

    def _look(self) -> None:
        for rank in self._running():
            code = self.handles[rank].poll()
            if code is not None:
                self._endings[rank] = Ending(
                    rank=rank,
                    exit_code=code,
                    at=self.clock.now(),
                    stopped=rank in self._told,
                    failure=self.failure_of(rank),
                )
        self.on_poll()

    def _running(self) -> list[int]:
        return [rank for rank in self.handles if rank not in self._endings]

    def _failures(self) -> list[Ending]:
        return [ending for ending in self._endings.values() if ending.failed]
