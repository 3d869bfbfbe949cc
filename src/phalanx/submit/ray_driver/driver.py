"""The driver of a Ray job: acquires bundles, watches the launchers, and restarts after a loss."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.errors import LaunchError
from phalanx.launcher.elastic import ScaleUpMonitor
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import Clock
from phalanx.submit.ray_driver.plan import RayPlan

REPORT_SECONDS = 30.0
TRY = 3.0
"""Seconds within which Ray assigns bundles that are free now."""


class PlacementRequest(Protocol):
    """Bundles that were requested."""

    @property
    def count(self) -> int:
        """How many."""

    def is_ready(self) -> bool:
        """Whether all of them are assigned."""

    def release(self) -> None:
        """Release them, or cancel the request."""


def acquire(
    plan: RayPlan,
    request: Callable[[int], PlacementRequest],
    *,
    clock: Clock,
    is_cancelled: Callable[[], bool],
    report: Callable[[float], None],
) -> PlacementRequest | None:
    """Wait for bundles.

    Args:
        plan: how many.
        request: requests bundles.
        clock: the time.
        is_cancelled: whether they are no longer needed.
        report: called now and then with the seconds that the wait has taken.

    Returns:
        Bundles that are assigned; None if they are no longer needed.
    """
    began = reported = clock.now()
    while True:
        wanted = request(plan.max_launchers)
        since = clock.now()
        while not wanted.is_ready():
            now = clock.now()
            if is_cancelled() or (
                plan.min_launchers < plan.max_launchers and now - since > plan.placement_timeout
            ):
                break
            if now - reported > REPORT_SECONDS:
                reported = now
                report(now - began)
            clock.sleep(POLL)
        else:
            return wanted
        wanted.release()
        if is_cancelled():
            return None
        if (fewer := _largest_available(plan, request, clock)) is not None:
            return fewer


def _largest_available(
    plan: RayPlan, request: Callable[[int], PlacementRequest], clock: Clock
) -> PlacementRequest | None:
    """Find by bisection the most bundles that Ray assigns now; None if not even the fewest."""
    best: PlacementRequest | None = None
    low, high = plan.min_launchers, plan.max_launchers - 1
    while low <= high:
        if best is not None:
            best.release()
        count = (low + high + 1) // 2
        best = _at_once(count, request, clock)
        low, high = (count + 1, high) if best is not None else (low, count - 1)
    if best is None and high >= plan.min_launchers:
        best = _at_once(high, request, clock)
    return best


def _at_once(
    count: int, request: Callable[[int], PlacementRequest], clock: Clock
) -> PlacementRequest | None:
    wanted, end = request(count), clock.now() + TRY
    while not wanted.is_ready():
        if clock.now() > end:
            wanted.release()
            return None
        clock.sleep(POLL)
    return wanted


POLL = 0.5
LOOK = 2.0
"""Seconds to wait for an answer at each poll; a late answer is handled at a later poll."""
LEAVE = 60.0
"""Seconds within which the followers must end after the leader."""
SETTLE = 60.0
"""Seconds after a failure for Ray to notice that a node is lost."""


class Launchers(Protocol):
    """The launchers of one start, by bundle; the first leads."""

    hosts: tuple[str, ...]
    codes: list[int | None]
    lost: set[int]

    def poll(self, seconds: float) -> object:
        """Update the status of those that answer within `seconds`."""

    def check(self, seconds: float) -> None:
        """Count those as lost that do not answer within `seconds`."""

    def signal(self, number: int) -> None:
        """Send a signal to the leading launcher, which passes it on."""

    def end(self) -> None:
        """Kill what runs."""


class RayClusterProtocol(Protocol):
    """Assigns bundles and starts launchers."""

    def request(self, count: int) -> PlacementRequest:
        """Request `count` bundles."""

    def describe_resources(self) -> str:
        """The free resources as text."""

    def start(self, requests: Sequence[PlacementRequest], number: int) -> Launchers:
        """Start a launcher in each bundle of all of them.

        Raises:
            LaunchError: one could not be started.
        """


@dataclass(frozen=True, kw_only=True)
class StartResult:
    """How one start ended.

    Attributes:
        code: the leading launcher's exit code.
        lost: the hosts whose launchers were lost, with their index.
        may_grow: whether it was stopped because there is room for all bundles again.
    """

    code: int = 1
    lost: tuple[str, ...] = ()
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
            plan: the bundles and the command.
            cluster: assigns bundles.
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
                if not self._held and (request := self._acquire()) is not None:
                    self._held = [request]
                if not self._held:
                    return 128 + (self._signals.first or signal.SIGTERM)
                ended = self._start()
                if self._signals.count() or not (ended.lost or ended.code == RESUME_EXIT_CODE):
                    return ended.code
                if not ended.may_grow:
                    if left == 0:
                        self._announce(
                            f"--max-node-failures {self._plan.max_node_failures} are used up"
                        )
                        return ended.code
                    left -= 1
                    self._release()
                self._announce(f"{_reason(ended)}: resuming from the last checkpoint")
        finally:
            self._release()

    def _release(self) -> None:
        for request in self._held:
            request.release()
        self._held = []

    def _acquire(self) -> PlacementRequest | None:
        plan = self._plan
        bundle = ", ".join(f"{name} {count:g}" for name, count in plan.bundle.items())
        return acquire(
            plan,
            self._cluster.request,
            clock=self._clock,
            is_cancelled=lambda: self._signals.count() > 0,
            report=lambda seconds: self._announce(
                f"waiting for {plan.max_launchers} bundles of {bundle}: {seconds:.0f} s so far; "
                f"{self._cluster.describe_resources()}"
            ),
        )

    def _start(self) -> StartResult:
        try:
            launchers = self._cluster.start(self._held, self._starts)
        except LaunchError as error:
            if self._starts == 0:
                raise
            return StartResult(lost=(str(error),))
        finally:
            self._starts += 1
        count = len(launchers.hosts)
        more = self._plan.max_launchers - count
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
                room.release()

    def _watch(self, launchers: Launchers, room: PlacementRequest | None) -> StartResult:
        reported = 0
        leave: float | None = None
        growth = ScaleUpMonitor(
            lambda now: room is not None and room.is_ready(), self._run_dir, now=self._clock.now
        )
        while True:
            launchers.poll(LOOK)
            if (lost := _lost_launchers(launchers)) and not self._signals.count():
                return StartResult(lost=lost)
            if launchers.codes[0] is not None:
                leave = leave or self._clock.now() + LEAVE
                if None not in launchers.codes or self._clock.now() > leave:
                    return self._ended(launchers, growth.wanted)
            if self._signals.count() > reported:
                reported = self._signals.count()
                launchers.signal(self._signals.first or signal.SIGTERM)
            if not growth.wanted and growth.wants_save():
                self._announce("there is room for all launchers again: training saves and stops")
                launchers.signal(signal.SIGUSR1)
            self._clock.sleep(POLL)

    def _ended(self, launchers: Launchers, may_grow: bool) -> StartResult:
        """A failure may be a lost node's, which Ray notices later than the other launchers."""
        code = launchers.codes[0]
        assert code is not None
        if code not in (0, 2, RESUME_EXIT_CODE) and not self._signals.count():
            launchers.check(SETTLE)
        lost = _lost_launchers(launchers)
        return StartResult(code=code, lost=lost, may_grow=may_grow and not lost)


def _lost_launchers(launchers: Launchers) -> tuple[str, ...]:
    """Launchers that Ray has lost, or that something has killed."""
    killed = {index for index, code in enumerate(launchers.codes) if code is not None and code < 0}
    return tuple(f"{launchers.hosts[index]} ({index})" for index in sorted(launchers.lost | killed))


def _reason(ended: StartResult) -> str:
    if ended.lost:
        return f"lost the launcher on {', '.join(ended.lost)}"
    return "restarting with all launchers" if ended.may_grow else "asked to save and stop"
