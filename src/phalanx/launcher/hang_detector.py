"""A run that makes no progress: who waits, who has not come, and where in the code.

Every two seconds a worker writes down what it does (`heartbeat` in docs/records.md). If no worker
starts anything new for much longer than a step takes during training, the launcher says so; after
the timeout it ends the worker group: a worker waits for one that does not come. All times here are
of the launcher's own clock; see `HeartbeatReader`.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.worker_diagnosis import (
    diagnose_wait,
    diff_batch_specs,
    lines_about,
    merge_flight_status,
)
from phalanx.launcher.worker_status import (
    HeartbeatReader,
    WorkerProgress,
    WorkerStatus,
    worker_status_of,
)
from phalanx.monitoring.event_log import records_path

TIMES_AS_LONG = 20.0
"""So many usual steps are far longer than one; a reading of metrics or a retracing is less."""

LEAST_SECONDS = 15.0
MOST_OF_TIMEOUT = 0.5
_INTERVALS = 30
_LEAST_INTERVALS = 3


class StepTimeTracker:
    """Takes in how far training is, at each look, and keeps the seconds a step of late."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._recent: deque[float] = deque(maxlen=_INTERVALS)
        self._last: tuple[float, int] | None = None

    def take(self, now: float, steps: Iterable[int | None]) -> None:
        """Take in a look.

        Args:
            now: seconds.
            steps: the last step that each worker has trained.
        """
        step = max((step for step in steps if step is not None), default=None)
        if step is None:
            return
        if self._last is None or step < self._last[1]:
            self._last = now, step
        elif step > self._last[1]:
            self._recent.append((now - self._last[0]) / (step - self._last[1]))
            self._last = now, step

    @property
    def usual(self) -> float | None:
        """Seconds that a step takes; None before enough have been seen."""
        return median(self._recent) if len(self._recent) >= _LEAST_INTERVALS else None

    def stall_threshold(self, timeout: float) -> float | None:
        """Seconds without progress that are reported; None where that is unknown.

        Args:
            timeout: seconds after which the run is ended; 0 for never.
        """
        if self.usual is None:
            return None
        stall_threshold = max(TIMES_AS_LONG * self.usual, LEAST_SECONDS)
        return (
            stall_threshold if not timeout or stall_threshold <= MOST_OF_TIMEOUT * timeout else None
        )


EXIT_CODE = 124
"""The exit code of a run that made no progress, as of `timeout`."""

_OUTSIDE_TRAINING = ("start", "idle")
_LONGEST_PAUSE = 5.0
_SECONDS_FOR_STACKS = 1.0


@dataclass(kw_only=True)
class HangDetector:
    """Finds out whether a worker group makes no progress, and says where each worker is.

    Attributes:
        timeout: seconds without anything new, on any worker; 0 never ends a run.
        handles: the workers, by rank.
        paths: where they write.
        now: seconds, increasing.
        sleep: lets seconds pass.
        on_stall: called with a line about a step that takes far longer than usual; once each time.
        verdict: what was found, in words; None while all is well.
        seen: where each worker was when a collective had timed out; None where none has.
    """

    timeout: float
    handles: Mapping[int, WorkerHandle]
    paths: AttemptPaths
    now: Callable[[], float]
    sleep: Callable[[float], None]
    on_stall: Callable[[str], None] = lambda line: None
    verdict: str | None = None
    seen: str | None = None
    pace: StepTimeTracker = field(default_factory=StepTimeTracker)

    def __post_init__(self) -> None:
        self._polled = self.now()
        self._beats = {
            rank: HeartbeatReader(
                records_path(self.paths.run, rank), self._polled, flight=self.paths.flight(rank)
            )
            for rank in self.handles
        }
        self._has_reported = False

    def is_stuck(self) -> bool:
        """Whether no worker made progress for too long; `verdict` then says more."""
        pause = min(self.timeout / 10, _LONGEST_PAUSE) if self.timeout else _LONGEST_PAUSE
        if self.verdict is not None or self.now() < self._polled + pause:
            return self.verdict is not None
        self._polled = self.now()
        progress = self._progress()
        self.pace.take(self._polled, [each.step for each in progress.values()])
        everybody = list(progress.values())
        if self.timeout and makes_no_progress(everybody, self.timeout, self._polled):
            self.verdict = self._verdict(self._find(progress))
        else:
            self._check_for_stall(progress)
        return self.verdict is not None

    def capture_status(self) -> None:
        """A collective has timed out: see where the workers are that are still there."""
        if self.seen is None and self._running():
            found = self._find(self._progress())
            self.seen = "\n".join([*lines_about(found, self.now()), self._format_stacks()])

    def _check_for_stall(self, progress: Mapping[int, WorkerProgress]) -> None:
        everybody = list(progress.values())
        if self.timeout and not trains(everybody) and everybody:
            # A script may prepare data for hours: this is reported, and does not end the run.
            if not is_idle(everybody, self.timeout, self._polled):
                self._has_reported = False
            elif not self._has_reported:
                self._has_reported = True
                self.on_stall(self._outside_training(self._find(progress)))
            return
        stall_threshold = self.pace.stall_threshold(self.timeout)
        if stall_threshold is None or not makes_no_progress(
            list(progress.values()), stall_threshold, self._polled
        ):
            self._has_reported = False
        elif not self._has_reported:
            self._has_reported = True
            usual = f"a step usually takes {self.pace.usual:.2g} s"
            self.on_stall(f"{diagnose_wait(self._find(progress), self.now())} ({usual})")

    def _running(self) -> list[int]:
        return [rank for rank, handle in self.handles.items() if handle.poll() is None]

    def _progress(self) -> dict[int, WorkerProgress]:
        now = self.now()
        return {rank: self._beats[rank].poll(now) for rank in self._running()}

    def _find(self, progress: Mapping[int, WorkerProgress]) -> dict[int, WorkerStatus]:
        stacks, now = self._stacks(list(progress)), self.now()
        return {
            rank: worker_status_of(
                merge_flight_status(
                    each,
                    self.paths.flight(rank),
                    now=now,
                    last_heartbeat=self._beats[rank].last_heartbeat,
                ),
                stacks.get(rank, ""),
            )
            for rank, each in progress.items()
        }

    def _stacks(self, ranks: Sequence[int]) -> dict[int, str]:
        """What each worker runs at this moment, by its own account."""
        # SIGUSR2 ends a process that has not registered its handler yet.
        ranks = [rank for rank in ranks if self._beats[rank].has_started]
        for rank in ranks:
            # Not by its process id: on another host that is another process's.
            self.handles[rank].ask(signal.SIGUSR2)
        self.sleep(_SECONDS_FOR_STACKS)
        found = {}
        for rank in ranks:
            with suppress(OSError):
                found[rank] = self.paths.stacks(rank).read_text(errors="replace")
        return found

    def _verdict(self, found: Mapping[int, WorkerStatus]) -> str:
        now = self.now()
        return "\n".join(
            [
                f"The run makes no progress: {diagnose_wait(found, now)}.",
                *lines_about(found, now),
                *diff_batch_specs(found),
                f"{self._format_stacks()} What only some workers call may have parted them. If "
                "they were all at work, give --hang-timeout more seconds.",
            ]
        )

    def _outside_training(self, found: Mapping[int, WorkerStatus]) -> str:
        lines = [
            f"No worker trains, and none has started anything new for {self.timeout:.0f} s. The "
            "run continues.",
            *lines_about(found, self.now()),
            self._format_stacks(),
        ]
        return "\n".join(lines)

    def _format_stacks(self) -> str:
        return f"Their stacks: {self.paths.stacks(0).parent / 'worker-*.stacks.txt'}."


def makes_no_progress(progress: Sequence[WorkerProgress], timeout: float, now: float) -> bool:
    """Whether some worker trains and no worker has started anything for `timeout` seconds."""
    return trains(progress) and is_idle(progress, timeout, now)


def trains(progress: Sequence[WorkerProgress]) -> bool:
    """Whether some worker is in training."""
    return any(each.phase not in _OUTSIDE_TRAINING for each in progress)


def is_idle(progress: Sequence[WorkerProgress], timeout: float, now: float) -> bool:
    """Whether no worker has started anything for `timeout` seconds."""
    return all(now - each.since >= timeout for each in progress)
