"""Whether a worker group that failed is restarted, and when."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.root_cause import WorkerExit


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """What `--max-restarts` asks for.

    Attributes:
        most: restarts until the budget is used up; 0 for none.
        refill_after: seconds that an attempt must have lasted for the budget to be full again.
        first: seconds before the first restart; each further one waits twice as long.
        longest: seconds that a wait takes at most.
    """

    most: int = 0
    refill_after: float = 600.0
    first: float = 1.0
    longest: float = 60.0


@dataclass(frozen=True, kw_only=True)
class RestartDecision:
    """Restart, in so many seconds; the `number`-th restart of the budget."""

    seconds: float
    number: int


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Do not restart; `why` says more than the failure itself does."""

    why: str | None = None


class RestartBudget:
    """Keeps the budget of one run."""

    def __init__(self, policy: RestartPolicy) -> None:
        """Begin with a full budget."""
        self._policy = policy
        self._used = 0
        self._last: FailureRecord | None = None

    def after(
        self, cause: WorkerExit | None, *, lasted: float, is_left_out: bool = False
    ) -> RestartDecision | GiveUp:
        """What to do now that an attempt has failed.

        The same exception at the same step, twice in a row, is a bug and not a fault: it would
        come a third time. A worker that was killed, or lost its peers, has no exception.

        Args:
            cause: the root cause; None for a run that made no progress.
            lasted: seconds from the attempt's start to its end.
            is_left_out: whether the run continues without the worker that failed.
        """
        if self._policy.most == 0:
            return GiveUp()
        failure = cause.failure if cause is not None and not cause.is_secondary else None
        again = failure is not None and self._last is not None and _is_same(failure, self._last)
        if again and failure is not None and not is_left_out:
            return GiveUp(
                why=f"The same failure came before{_where(failure)}, so it is a bug that another "
                "start would meet again: not restarted."
            )
        self._last = failure
        if lasted >= self._policy.refill_after:
            self._used = 0
        if self._used >= self._policy.most:
            times = f"{self._used} time{'s' * (self._used != 1)}"
            return GiveUp(why=f"It had been restarted {times}, as many as --max-restarts asks.")
        seconds = min(self._policy.first * 2**self._used, self._policy.longest)
        self._used += 1
        return RestartDecision(seconds=seconds, number=self._used)


def _is_same(one: FailureRecord, other: FailureRecord) -> bool:
    return (one.type, one.step, one.summary) == (other.type, other.step, other.summary)


def _where(failure: FailureRecord) -> str:
    return "" if failure.step is None else f" at step {failure.step}"
