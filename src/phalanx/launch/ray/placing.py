"""Getting the bundles: all that are wanted, or after some time as many as there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from phalanx.launch.ray.plan import RayPlan
from phalanx.launch.supervise import Clock

TELL_EVERY = 30.0
TRY = 3.0
"""Seconds in which bundles that are free now are given out."""
POLL = 0.5


class Wish(Protocol):
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
    wish: Callable[[int], Wish],
    *,
    clock: Clock,
    is_over: Callable[[], bool],
    tell: Callable[[float], None],
) -> Wish | None:
    """Wait for bundles.

    Args:
        plan: how many.
        wish: asks for bundles.
        clock: the time.
        is_over: whether nobody wants them any more.
        tell: told how many seconds the wait has taken, now and then.

    Returns:
        Bundles that are there; None where nobody wants them any more.
    """
    began = told = clock.now()
    while True:
        asked = wish(plan.most)
        since = clock.now()
        while not asked.is_there():
            now = clock.now()
            if is_over() or (plan.least < plan.most and now - since > plan.patience):
                break
            if now - told > TELL_EVERY:
                told = now
                tell(now - began)
            clock.sleep(POLL)
        else:
            return asked
        asked.drop()
        if is_over():
            return None
        if (fewer := _as_many_as_there_are(plan, wish, clock)) is not None:
            return fewer


def _as_many_as_there_are(plan: RayPlan, wish: Callable[[int], Wish], clock: Clock) -> Wish | None:
    """By halving: the most that are given out at once; None where not even the fewest are."""
    best: Wish | None = None
    low, high = plan.least, plan.most - 1
    while low <= high:
        if best is not None:
            best.drop()
        count = (low + high + 1) // 2
        best = _at_once(count, wish, clock)
        low, high = (count + 1, high) if best is not None else (low, count - 1)
    if best is None and high >= plan.least:
        best = _at_once(high, wish, clock)
    return best


def _at_once(count: int, wish: Callable[[int], Wish], clock: Clock) -> Wish | None:
    asked, end = wish(count), clock.now() + TRY
    while not asked.is_there():
        if clock.now() > end:
            asked.drop()
            return None
        clock.sleep(POLL)
    return asked
