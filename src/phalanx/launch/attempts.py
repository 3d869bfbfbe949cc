"""The attempts of a run: start the gang, wait for its end, and start it again where asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from phalanx.errors import LaunchError
from phalanx.launch.attempt import Gangs, Ran
from phalanx.launch.elastic import GangSize, Resized, TooFew
from phalanx.launch.layout import AttemptPaths
from phalanx.launch.outcome import RunResult, outcome, saved_in_words
from phalanx.launch.preemption import RESUME_EXIT_CODE
from phalanx.launch.restarts import Again, Enough, RestartPolicy, Restarts
from phalanx.launch.rootcause import Ending, lost_its_port, root_cause

PORT_TRIES = 4


@dataclass(kw_only=True)
class Course:
    """What is kept from one attempt to the next."""

    restarts: Restarts
    size: GangSize
    port_tries: int = PORT_TRIES


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """All attempts of one run.

    Attributes:
        gangs: starts the gang.
    """

    gangs: Gangs

    def run(self) -> RunResult:
        """Start the gang until it ends well, or no restart is left.

        Raises:
            LaunchError: a worker process could not be started.
        """
        try:
            return self._until_it_ends()
        finally:
            self.gangs.cool()

    def _until_it_ends(self) -> RunResult:
        most = len(self.gangs.plan.shares)
        course = Course(
            restarts=Restarts(RestartPolicy(most=self.gangs.options.max_restarts)),
            size=GangSize(least=self.gangs.options.min_workers or most, most=most),
        )
        for attempt in count(AttemptPaths.next(self.gangs.plan.run_dir)):
            try:
                result = self._judge(attempt, self.gangs.run(attempt, course.size), course)
            except LaunchError as error:
                change = course.size.could_not_start(error.rank, now=self.gangs.clock.now())
                if not isinstance(change, Resized):
                    raise
                self._resize(attempt + 1, course.size, change)
                continue
            if result is not None:
                return result
        raise AssertionError("count() does not end")

    def _judge(self, attempt: int, ran: Ran, course: Course) -> RunResult | None:
        """What the run comes to after this attempt; None to start again, after any wait."""
        result = self._result(attempt, ran)
        if self.gangs.signals.count() or result.exit_code == 0:
            return result
        cause = None if ran.hang is not None else root_cause(ran.endings)
        if ran.to_grow and cause is None and ran.hang is None:
            self._resize(attempt + 1, course.size, course.size.grow())
            return None
        if result.exit_code == RESUME_EXIT_CODE:
            return result
        if not self.gangs.plan.paths(attempt).any_trained:
            self.gangs.cool()  # Whatever it was: no fork will be part of it next time.
        if cause is not None and lost_its_port(cause) and course.port_tries > 1:
            course.port_tries -= 1
            self.gangs.journal.restart(attempt + 1, cause=cause, seconds=0.0)
            self.gangs.announce(
                "another program took a worker's port: starting again with new ones"
            )
            return None
        return self._after_failure(attempt, ran, course, result, cause)

    def _after_failure(
        self, attempt: int, ran: Ran, course: Course, result: RunResult, cause: Ending | None
    ) -> RunResult | None:
        trained = cause is None or self.gangs.plan.paths(attempt).trained(cause.rank).exists()
        rank = cause.rank if cause is not None else None
        change = course.size.failed(rank, trained=trained, now=self.gangs.clock.now())
        resized = isinstance(change, Resized)
        decision: Again | Enough = Again(seconds=0.0, number=0)
        if isinstance(change, TooFew):
            decision = Enough(why=change.why)
        elif not (isinstance(change, Resized) and change.at_no_cost):
            decision = course.restarts.after(cause, lasted=ran.seconds, is_left_out=resized)
        if isinstance(decision, Enough):
            report = "\n".join(filter(None, (result.report, decision.why)))
            return replace(result, report=report)
        self._wait_for(decision, attempt + 1, cause)
        if self.gangs.signals.count():
            return self._result(attempt, replace(ran, hang=None))
        if isinstance(change, Resized):
            self._resize(attempt + 1, course.size, change)
        return None

    def _resize(self, attempt: int, size: GangSize, change: Resized) -> None:
        self.gangs.announce(change.why)
        self.gangs.journal.resize(attempt, members=size.members, why=change.why)

    def _result(self, attempt: int, ran: Ran) -> RunResult:
        result = outcome(
            ran.endings,
            hang=ran.hang,
            seen=ran.seen,
            signal=self.gangs.signals.first,
            paths=self.gangs.plan.paths(attempt),
        )
        if result.exit_code == RESUME_EXIT_CODE and (self.gangs.signals.count() or not ran.to_grow):
            self.gangs.announce(
                saved_in_words(self.gangs.plan.run_dir, named=self.gangs.options.name is not None)
            )
        return result

    def _wait_for(self, decision: Again, attempt: int, cause: Ending | None) -> None:
        """Say that the gang starts again, and wait; a signal cuts the wait short."""
        what = "it stood still" if cause is None else f"worker {cause.rank} failed: {cause.what}"
        restart = f"restart {decision.number} of {self.gangs.options.max_restarts}"
        self.gangs.announce(
            f"{what}; {restart} in {decision.seconds:.0f} s" if decision.number else what
        )
        self.gangs.journal.restart(attempt, cause=cause, seconds=decision.seconds)
        until = self.gangs.clock.now() + decision.seconds
        while self.gangs.clock.now() < until and not self.gangs.signals.count():
            self.gangs.clock.sleep(self.gangs.patience.poll)
