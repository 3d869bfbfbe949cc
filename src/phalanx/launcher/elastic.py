"""`--workers MIN:MAX`: continue with fewer workers where one cannot restart, and with all later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.monitoring.event_log import last_record, records_path

POLL_SECONDS = 2.0
"""Between two looks at whether a checkpoint was saved."""


@dataclass(frozen=True, kw_only=True)
class MembershipChange:
    """The worker group changes.

    Attributes:
        why: to what, and for what reason.
        at_no_cost: whether only a try has failed, which no restart is counted for.
    """

    why: str
    at_no_cost: bool = False


@dataclass(frozen=True, kw_only=True)
class BelowMinimum:
    """It would have to become smaller than allowed; `why` says so."""

    why: str


class ElasticMembership:
    """Who of a run's workers is in the worker group.

    Members are numbered as at first, 0 to `most - 1`; a member's rank is its place in `members`.
    A worker that fails before it has trained a step, in two attempts in a row, cannot restart.
    All are tried again once a checkpoint has been saved. Where that fails at the start, the next
    try comes after a wait, which doubles each time.
    """

    def __init__(
        self, *, least: int, most: int, first_wait: float = 60.0, longest_wait: float = 3600.0
    ) -> None:
        """Begin with all.

        Args:
            least: the fewest workers to continue with; as many as `most` for no change ever.
            most: all of them.
            first_wait: seconds before the next try, after one that failed.
            longest_wait: seconds that such a wait takes at most.
        """
        self.members = tuple(range(most))
        self._least = least
        self._all = self.members
        self._first, self._longest = first_wait, longest_wait
        self._wait = first_wait
        self._not_before = 0.0
        self._suspect: int | None = None
        self._fallback_members: tuple[int, ...] | None = (
            None  # To go back to, while all are tried again.
        )

    @property
    def is_full_size(self) -> bool:
        """Whether all are in."""
        return self.members == self._all

    def failed(
        self, rank: int | None, *, trained: bool, now: float
    ) -> MembershipChange | BelowMinimum | None:
        """What an attempt that failed changes.

        Args:
            rank: who failed first; None for a run that made no progress.
            trained: whether that worker had trained a step in this attempt.
            now: seconds.
        """
        if self._least == len(self._all):
            return None
        if trained or rank is None:
            self._suspect, self._fallback_members, self._wait = None, None, self._first
            return None
        member = self.members[rank]
        if self._fallback_members is not None:
            return self._go_back(member, now)
        if self._suspect != member:
            self._suspect = member
            return None
        return self._leave_out([member])

    def could_not_start(
        self, ranks: Sequence[int], *, now: float
    ) -> MembershipChange | BelowMinimum | None:
        """What it changes that the processes of these workers could not be started at all."""
        lost = [member for rank, member in enumerate(self.members) if rank in ranks]
        if self._least == len(self._all) or not lost:
            return None
        if self._fallback_members is not None:
            return self._go_back(lost[0], now)
        return self._leave_out(lost)

    def may_grow(self, now: float) -> bool:
        """Whether all may be tried again, as soon as there is a checkpoint."""
        return not self.is_full_size and now >= self._not_before

    def grow(self) -> MembershipChange:
        """Try all again."""
        self._fallback_members, self.members = self.members, self._all
        return MembershipChange(why=f"a checkpoint was saved: {self._describe_members()} again")

    def _leave_out(self, lost: Sequence[int]) -> MembershipChange | BelowMinimum:
        workers = "Worker" if len(lost) == 1 else "Workers"
        problem = f"{workers} {', '.join(map(str, lost))} cannot restart"
        if len(self.members) - len(lost) < self._least:
            return BelowMinimum(
                why=f"{problem}, and --workers {self._least}:{len(self._all)} asks for at least "
                f"{self._least}."
            )
        self._suspect = None
        self.members = tuple(each for each in self.members if each not in lost)
        return MembershipChange(why=f"{problem.lower()}: {self._describe_members()}")

    def _go_back(self, member: int, now: float) -> MembershipChange:
        assert self._fallback_members is not None
        self.members, self._fallback_members = self._fallback_members, None
        wait, self._wait = self._wait, min(2 * self._wait, self._longest)
        self._not_before = now + wait
        return MembershipChange(
            why=f"worker {member} still cannot start: {self._describe_members()}, "
            f"and trying again in {wait:.0f} s at the earliest",
            at_no_cost=True,
        )

    def _describe_members(self) -> str:
        return f"continuing with {len(self.members)} of {len(self._all)} workers"


class ScaleUpMonitor:
    """Whether training that runs too small should save and stop, to restart at full size."""

    def __init__(
        self, may_grow: Callable[[float], bool], run_dir: Path, *, now: Callable[[], float]
    ) -> None:
        """Begin with an attempt.

        Args:
            may_grow: whether all could start now, as soon as there is a checkpoint.
            run_dir: the run's directory, where the chief records checkpoints.
            now: seconds, increasing.
        """
        self._may_grow = may_grow
        self._records = records_path(run_dir, 0)
        self._now = now
        self._polled = now()
        self._before = self._last_checkpoint()
        self.wanted = False

    def wants_save(self) -> bool:
        """Whether there has been a checkpoint since the attempt began, and it is time."""
        now = self._now()
        if self.wanted or now < self._polled + POLL_SECONDS:
            return self.wanted
        self._polled = now
        if self._may_grow(now):
            saved = self._last_checkpoint()
            self.wanted = saved is not None and saved != self._before
        return self.wanted

    def _last_checkpoint(self) -> object:
        # Another record than at the start of the attempt: times in records may be of other clocks.
        return last_record(self._records, "checkpoint", "t")
