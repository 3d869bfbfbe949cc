"""Which faults a disturbed run meets."""

from __future__ import annotations

import random

from phalanx.testing.chaos import (
    DropNetwork,
    Exit,
    FailWrites,
    Fault,
    Freeze,
    Kill,
    Plan,
    SlowWrites,
)

WORKERS = 3
STEPS = 54  # of soak/training.py
ENDING = 2  # faults of a run that end its worker group
LASTING = 6  # faults of a run that it bears without a restart


def plan_of(seed: int) -> Plan:
    """The faults of the run of that seed, in the order of their steps."""
    draw = random.Random(seed)
    ending = [_ending(draw) for _ in range(ENDING)]
    lasting = [_lasting(draw) for _ in range(LASTING)]
    return (*ending, *lasting)


def _ending(draw: random.Random) -> Fault:
    worker, step = draw.randrange(WORKERS), draw.randint(1, STEPS)
    kind = draw.choices([Kill, Exit, Freeze, DropNetwork], weights=[70, 10, 10, 10])[0]
    return kind(worker=worker, step=step)


def _lasting(draw: random.Random) -> Fault:
    worker, step = draw.randrange(WORKERS), draw.randint(1, STEPS)
    kind = draw.choices([Freeze, FailWrites, SlowWrites], weights=[20, 60, 20])[0]
    if kind is Freeze:
        return Freeze(worker=worker, step=step, seconds=round(draw.uniform(0.2, 1.5), 2))
    nth = draw.randint(1, 12)
    if kind is SlowWrites:
        return SlowWrites(worker=worker, nth=nth, seconds=round(draw.uniform(0.2, 1.5), 2))
    error = draw.choice(["ENOSPC", "EIO", "EROFS", "EDQUOT"])
    return FailWrites(worker=worker, nth=nth, times=draw.randint(1, 3), error=error)


def retries_of(seed: int) -> int:
    """How often the run's checkpoints try a write again: with few, some are given up."""
    return 1 if seed % 3 == 0 else 5


def kind_of(seed: int) -> str:
    """Whether it trains on arrays or on a pipeline of tf.data."""
    return "pipeline" if seed % 2 else "arrays"
