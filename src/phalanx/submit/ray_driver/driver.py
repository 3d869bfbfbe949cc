"""The driver of a Ray job: places launchers, watches them, and begins again after a loss."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.errors import LaunchError
from phalanx.launch.elastic import ScaleUpMonitor
from phalanx.launch.signals import SignalCatcher
from phalanx.launch.supervisor import Clock
from phalanx.submit.ray_driver.plan import RayPlan

REPORT_SECONDS = 30.0
TRY = 3.0
"""Seconds in which bundles that are free now are given out."""


class PlacementRequest(Protocol):
    """Bundles that are asked for."""

    @property
    def count(self) -> int:
        """How many."""

    def is_there(self) -> bool:
        """Whether all of them are there."""

    def drop(self) -> None:
        """Give them back, or ask for them no longer."""


def place(
    plan: RayPlan,
    request: Callable[[int], PlacementRequest],
    *,
    clock: Clock,
    is_over: Callable[[], bool],
    report: Callable[[float], None],
) -> PlacementRequest | None:
    """Wait for bundles.

    Args:
        plan: how many.
        request: asks for bundles.
        clock: the time.
        is_over: whether they are no longer needed.
        report: told how many seconds the wait has taken, now and then.

    Returns:
        Bundles that are there; None where they are no longer needed.
    """
    began = reported = clock.now()
    while True:
        asked = request(plan.most)
        since = clock.now()
        while not asked.is_there():
            now = clock.now()
            if is_over() or (plan.least < plan.most and now - since > plan.placement_timeout):
                break
            if now - reported > REPORT_SECONDS:
                reported = now
                report(now - began)
            clock.sleep(POLL)
        else:
            return asked
        asked.drop()
        if is_over():
            return None
        if (fewer := _largest_available(plan, request, clock)) is not None:
            return fewer


def _largest_available(
    plan: RayPlan, request: Callable[[int], PlacementRequest], clock: Clock
) -> PlacementRequest | None:
    """By halving: the most that are given out at once; None where not even the fewest are."""
    best: PlacementRequest | None = None
    low, high = plan.least, plan.most - 1
    while low <= high:
        if best is not None:
            best.drop()
        count = (low + high + 1) // 2
        best = _at_once(count, request, clock)
        low, high = (count + 1, high) if best is not None else (low, count - 1)
    if best is None and high >= plan.least:
        best = _at_once(high, request, clock)
    return best


def _at_once(
    count: int, request: Callable[[int], PlacementRequest], clock: Clock
) -> PlacementRequest | None:
    asked, end = request(count), clock.now() + TRY
    while not asked.is_there():
        if clock.now() > end:
            asked.drop()
            return None
        clock.sleep(POLL)
    return asked


POLL = 0.5
LOOK = 2.0
"""Seconds to wait for an answer at each look; one that is late is taken at a later look."""
LEAVE = 60.0
"""Seconds that the others have to end after the leading launcher has."""
SETTLE = 60.0
"""Seconds after a failure for Ray to notice that a node is gone."""


class Launchers(Protocol):
    """The launchers of one start, by bundle; the first leads."""

    hosts: tuple[str, ...]
    codes: list[int | None]
    lost: set[int]

    def look(self, seconds: float) -> object:
        """Take news of those that answer within so many seconds."""

    def check(self, seconds: float) -> None:
        """Who does not answer within so many seconds counts as lost."""

    def ask(self, number: int) -> None:
        """Send a signal to the leading launcher, which passes it on."""

    def end(self) -> None:
        """Kill what runs."""


class RayClusterProtocol(Protocol):
    """Where bundles come from."""

    def request(self, count: int) -> PlacementRequest:
        """Ask for so many."""

    def free(self) -> str:
        """What there is, in words."""

    def begin(self, requests: Sequence[PlacementRequest], number: int) -> Launchers:
        """Start a launcher in each bundle of all of them.

        Raises:
            LaunchError: one could not be started.
        """


@dataclass(frozen=True, kw_only=True)
class StartResult:
    """How one start ended.

    Attributes:
        code: the leading launcher's exit code.
        gone: the hosts whose launchers were lost, with their index.
        may_grow: whether it was stopped because there is room for all bundles again.
    """

    code: int = 1
    gone: tuple[str, ...] = ()
    may_grow: bool = False


class Driver:
    """Drives one run."""

    def __init__(
        self,
        plan: RayPlan,
        cluster: RayClusterProtocol,
        *,
        signals: SignalCatcher,
        clock: Clock,
        announce: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            plan: what is asked for.
            cluster: where bundles come from.
            signals: those that reached the driver: `phalanx cancel` sends SIGTERM.
            clock: the time.
            announce: says something to the user.
        """
        self._plan = plan
        self._cluster = cluster
        self._signals = signals
        self._clock = clock
        self._announce = announce
        self._run_dir = Path(plan.run_dir, plan.name)
        self._starts = 0
        self._held: list[PlacementRequest] = []

    def run(self) -> int:
        """Train to the end; gives the run's exit code.

        Raises:
            LaunchError: launchers could not be started.
        """
        left = self._plan.max_node_failures
        try:
            while True:
                if not self._held and (request := self._place()) is not None:
                    self._held = [request]
                if not self._held:
                    return 128 + (self._signals.first or signal.SIGTERM)
                ended = self._start()
                if self._signals.count() or not (ended.gone or ended.code == RESUME_EXIT_CODE):
                    return ended.code
                if not ended.may_grow:
                    if left == 0:
                        self._announce(
                            f"--max-node-failures {self._plan.max_node_failures} are used up"
                        )
                        return ended.code
                    left -= 1
                    self._drop()
                self._announce(f"{_why(ended)}: resuming from the last checkpoint")
        finally:
            self._drop()

    def _drop(self) -> None:
        for request in self._held:
            request.drop()
        self._held = []

    def _place(self) -> PlacementRequest | None:
        plan = self._plan
        bundle = ", ".join(f"{name} {count:g}" for name, count in plan.bundle.items())
        return place(
            plan,
            self._cluster.request,
            clock=self._clock,
            is_over=lambda: self._signals.count() > 0,
            report=lambda seconds: self._announce(
                f"waiting for {plan.most} bundles of {bundle}: {seconds:.0f} s so far; "
                f"{self._cluster.free()}"
            ),
        )

    def _start(self) -> StartResult:
        try:
            launchers = self._cluster.begin(self._held, self._starts)
        except LaunchError as error:
            if self._starts == 0:
                raise
            return StartResult(gone=(str(error),))
        finally:
            self._starts += 1
        count = len(launchers.hosts)
        more = self._plan.most - count
        self._announce(
            f"{count} launcher{'s' * (count != 1)} on {', '.join(launchers.hosts)}"
            + f", {more} fewer than wanted" * (more > 0)
        )
        room = self._cluster.request(more) if more else None
        try:
            ended = self._watch(launchers, room)
            if room is not None and ended.may_grow:
                self._held, room = [*self._held, room], None  # Else others might take them.
            return ended
        finally:
            launchers.end()
            if room is not None:
                room.drop()

    def _watch(self, launchers: Launchers, room: PlacementRequest | None) -> StartResult:
        reported = 0
        leave: float | None = None
        growth = ScaleUpMonitor(
            lambda now: room is not None and room.is_there(), self._run_dir, now=self._clock.now
        )
        while True:
            launchers.look(LOOK)
            if (gone := _gone(launchers)) and not self._signals.count():
                return StartResult(gone=gone)
            if launchers.codes[0] is not None:
                leave = leave or self._clock.now() + LEAVE
                if None not in launchers.codes or self._clock.now() > leave:
                    return self._ended(launchers, growth.wanted)
            if self._signals.count() > reported:
                reported = self._signals.count()
                launchers.ask(self._signals.first or signal.SIGTERM)
            if not growth.wanted and growth.wants_save():
                self._announce("there is room for all launchers again: training saves and stops")
                launchers.ask(signal.SIGUSR1)
            self._clock.sleep(POLL)

    def _ended(self, launchers: Launchers, may_grow: bool) -> StartResult:
        """A failure may be a lost node's, which Ray notices later than the other launchers."""
        code = launchers.codes[0]
        assert code is not None
        if code not in (0, 2, RESUME_EXIT_CODE) and not self._signals.count():
            launchers.check(SETTLE)
        gone = _gone(launchers)
        return StartResult(code=code, gone=gone, may_grow=may_grow and not gone)


def _gone(launchers: Launchers) -> tuple[str, ...]:
    """Launchers that Ray has lost, or that something has killed."""
    killed = {index for index, code in enumerate(launchers.codes) if code is not None and code < 0}
    return tuple(f"{launchers.hosts[index]} ({index})" for index in sorted(launchers.lost | killed))


def _why(ended: StartResult) -> str:
    if ended.gone:
        return f"lost the launcher on {', '.join(ended.gone)}"
    return "restarting with all launchers" if ended.may_grow else "asked to save and stop"
