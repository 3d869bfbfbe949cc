"""Which faults a disturbed run meets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.testing.chaos import (
    DropNetwork,
    Exit,
    FailWrites,
    Fault,
    Freeze,
    Kill,
    Plan,
    SlowWrites,
    show_plan,
)
from soak.command_faults import (
    BitRot,
    ClockJump,
    CloseOutput,
    CommandFault,
    FullDisk,
    KillLauncher,
    LoseWorker,
    SecondLauncher,
)

WORKERS = 3
STEPS = 54  # of soak/training.py
ENDING = 2  # faults of a run that end its worker group
LASTING = 17  # faults of a run that it bears without a restart
OUTSIDE = 6  # faults of a run that happen to its command


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What one run meets.

    Attributes:
        seed: what it was drawn from.
        kind: whether it trains on "arrays" or on a "pipeline" of tf.data.
        inside: the faults in its workers.
        outside: the faults of its command, by step.
        retries: how often its checkpoints try a write again: with few, some are given up.
        elastic: whether it may continue with fewer workers.
    """

    seed: int
    kind: str
    inside: Plan
    outside: Sequence[CommandFault]
    retries: int
    elastic: bool

    def __str__(self) -> str:
        """All faults, as code."""
        return "; ".join([show_plan(self.inside), *map(str, self.outside)])


def plan_of(seed: int) -> RunPlan:
    """What the run of that seed meets."""
    draw = random.Random(seed)
    ending = [_ending(draw) for _ in range(ENDING)]
    lasting = [_lasting(draw) for _ in range(LASTING)]
    elastic = seed % 5 == 0
    outside = [_outside(draw) for _ in range(OUTSIDE)]
    if elastic:
        outside.append(LoseWorker(step=draw.randint(4, STEPS // 2)))
    return RunPlan(
        seed=seed,
        kind=kind_of(seed),
        inside=(*ending, *lasting),
        outside=tuple(sorted(outside, key=lambda fault: fault.step)),
        retries=1 if seed % 3 == 0 else 5,
        elastic=elastic,
    )


def kind_of(seed: int) -> str:
    """Whether a run trains on arrays or on a pipeline of tf.data."""
    return "pipeline" if seed % 2 else "arrays"


def _ending(draw: random.Random) -> Fault:
    worker, step = draw.randrange(WORKERS), draw.randint(1, STEPS)
    kind = draw.choices([Kill, Exit, Freeze, DropNetwork], weights=[70, 10, 10, 10])[0]
    return kind(worker=worker, step=step)


def _lasting(draw: random.Random) -> Fault:
    worker, step = draw.randrange(WORKERS), draw.randint(1, STEPS)
    kind = draw.choices([Freeze, FailWrites, SlowWrites], weights=[20, 60, 20])[0]
    if kind is Freeze:
        return Freeze(worker=worker, step=step, seconds=round(draw.uniform(0.2, 1.5), 2))
    nth = draw.randint(1, 24)
    if kind is SlowWrites:
        return SlowWrites(worker=worker, nth=nth, seconds=round(draw.uniform(0.2, 1.5), 2))
    error = draw.choice(["ENOSPC", "EIO", "EROFS", "EDQUOT"])
    return FailWrites(worker=worker, nth=nth, times=draw.randint(1, 3), error=error)


def _outside(draw: random.Random) -> CommandFault:
    step = draw.randint(1, STEPS - 2)
    kinds = [KillLauncher, CloseOutput, SecondLauncher, BitRot, ClockJump, FullDisk]
    kind = draw.choices(kinds, weights=[15, 15, 15, 20, 20, 15])[0]
    if kind is BitRot:
        return BitRot(step=max(step, 10), position=round(draw.random(), 4))
    if kind is ClockJump:
        return ClockJump(step=step, seconds=draw.choice([-20, -5, 30, 3_600, 86_400]))
    if kind is FullDisk:
        return FullDisk(step=step, seconds=round(draw.uniform(0.2, 2.0), 2))
    return kind(step=step)
