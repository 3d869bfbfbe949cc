"""Contenders take turns on the same cores: block by block, round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from step_time.laps import Lap
from step_time.worker_group import ContenderFailedError, ContenderGroup

WARM_UP = 5
"""Steps of a loop that do not count; of `fit`, the first epoch does not."""


@dataclass(kw_only=True)
class Series:
    """One contender's blocks by round, a mean step of each; or why there are none."""

    contender: str
    model: str
    workers: int
    laps: list[Lap] = field(default_factory=list)
    error: str | None = None

    @property
    def milliseconds(self) -> float:
        """The median over rounds."""
        return median(lap.wall for lap in self.laps) * 1e3

    @property
    def cpu_milliseconds(self) -> float:
        """The median over rounds of the processor time, of all workers together."""
        return median(lap.cpu for lap in self.laps) * 1e3

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        ordered = sorted(lap.wall for lap in self.laps)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / 2 / median(ordered)


def ratio(one: Series, other: Series, *, of: str = "wall") -> float:
    """The median over rounds of one's time to the other's, neighbours in time."""
    pairs = zip(one.laps, other.laps, strict=True)
    return median(getattr(a, of) / getattr(b, of) for a, b in pairs)


def measure(
    contenders: Sequence[str],
    models: Sequence[str],
    *,
    workers: int,
    rounds: int,
    steps: Mapping[str, int],
    python: Path,
    logs: Path,
    report: Callable[[str], None],
) -> list[Series]:
    """Every contender on every model, `steps` of the model a block, in alternating order."""
    all_series = []
    worker_groups = {name: ContenderGroup(name, workers, python, logs) for name in contenders}
    try:
        dead = {
            name: error
            for name, worker_group in worker_groups.items()
            if (error := _readiness(worker_group))
        }
        for model in models:
            series = [Series(contender=n, model=model, workers=workers) for n in contenders]
            all_series += series
            for number in range(-1, rounds):  # Round -1 traces and compiles; no one counts it.
                report(f"{workers} worker(s), {model}: round {number + 1} of {rounds}")
                for one in series if number % 2 else reversed(series):
                    name = one.contender
                    one.error = dead.get(name)
                    if one.error:
                        continue
                    try:
                        lap = worker_groups[name].block(model, steps[model], WARM_UP)
                    except ContenderFailedError as failed:
                        one.error = dead[name] = str(failed)
                        worker_groups[name].close()
                        continue
                    if number >= 0:
                        one.laps.append(lap)
    finally:
        for worker_group in worker_groups.values():
            worker_group.close()
    return all_series


def _readiness(worker_group: ContenderGroup) -> str | None:
    try:
        worker_group.wait_until_ready()
    except ContenderFailedError as failed:
        return str(failed)
    return None
