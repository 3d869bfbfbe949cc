"""One disturbed run: start it, wait for its end, and look whether it is as if undisturbed."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.manifest import is_manifest
from phalanx.checkpoint.reader import manifest_of, verify
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP
from phalanx.errors import CheckpointError
from phalanx.lease.records import LEASE_DIR
from phalanx.report.run_data import load_run
from soak.plans import WORKERS, plan_of
from soak.running import SoakCommand

ROUNDING = 1e-4
"""Other numbers of workers add up the same gradients in another order, 54 steps of Adam long."""

Result = Mapping[str, object] | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        seed: of its plan.
        happened: how many faults of each kind came about.
        restarts: how often the worker group was restarted.
        seconds: how long it took.
        wrong: what is not as it should be; nothing, if all is well.
        goodput: its time in steps; None where its clock was set.
    """

    seed: int
    happened: Counter[str]
    restarts: int
    seconds: float
    wrong: tuple[str, ...]
    goodput: StepTime | None


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of the steps that counted in the end, without the first one of each attempt.

    Attributes:
        seconds: of the run.
        reported: by `phalanx report`.
        own: by the clock of the script.
    """

    seconds: float
    reported: float
    own: float


def step_time(run: Path, steps: Path) -> StepTime | None:
    """The time of a run in steps, by its records and by the script's clock."""
    found = load_run(run).goodput
    if found is None or not steps.exists():
        return None
    attempts: dict[int, dict[int, float]] = {}
    for process, step, seconds in map(json.loads, steps.read_text().splitlines()):
        spent = attempts.setdefault(process, {})
        spent[step] = spent.get(step, 0.0) + seconds
    own, resumed = 0.0, math.inf
    for attempt in reversed(attempts.values()):
        first = min(attempt)
        own += sum(each for step, each in attempt.items() if first < step <= resumed)
        resumed = min(resumed, first - 1)
    return StepTime(seconds=found.seconds, reported=found.step_seconds, own=own)


def disturbed(
    seed: int, place: Path, expected: Sequence[Result], *, clock_library: Path | None
) -> Outcome:
    """Run the training with the faults of `seed`, in the directory `place`."""
    began = time.monotonic()
    plan = plan_of(seed)
    command = SoakCommand(place, plan, clock_library=clock_library)
    try:
        try:
            code = command.finish()
        except Exception as error:  # of the soak itself: the other runs continue
            code = 1
            command.wrong.append(f"{type(error).__name__}: {error}")
        wrong = [*command.wrong, *([f"exit code {code}"] if code else [])]
        if not code:
            wrong += differences(results(place), expected, exact=not plan.elastic)
        try:
            wrong += half_written(command.checkpoints, command.unreadable)
        except CheckpointError as error:
            wrong.append(str(error))
        marks = [_kind(mark.name) for mark in command.run_dir.glob("chaos/*")]
        attempts = len(list(command.run_dir.glob("attempts/*")))
        was_set = "ClockJump" in command.happened  # records have the times of the wall clock
        goodput = None if was_set else step_time(command.run_dir, place / "steps.jsonl")
        if wrong:
            shutil.copytree(command.place, place / "kept", symlinks=True)
    finally:
        command.close()
    return Outcome(
        seed=seed,
        happened=Counter([*marks, *command.happened]),
        restarts=max(0, attempts - 1),
        seconds=time.monotonic() - began,
        wrong=tuple(wrong),
        goodput=goodput,
    )


def undisturbed(kind: str, place: Path) -> list[Result]:
    """What each worker comes to when nothing happens.

    Raises:
        RuntimeError: not even that run ended well.
    """
    plan = replace(plan_of(0), inside=(), outside=(), kind=kind, retries=5, elastic=False)
    command = SoakCommand(place, plan, clock_library=None)
    try:
        code = command.finish()
    finally:
        command.close()
    if code or command.wrong:
        raise RuntimeError(f"the undisturbed run ended with {code}: see {place}/output.txt")
    return results(place)


def results(place: Path) -> list[Result]:
    """What each worker wrote down at its end, by rank; None where it did not."""
    files = [place / f"result-{rank}.json" for rank in range(WORKERS)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def differences(found: Sequence[Result], expected: Sequence[Result], *, exact: bool) -> list[str]:
    """How the results of a run differ from those of the undisturbed one.

    Args:
        found: of each worker.
        expected: the same of the undisturbed run.
        exact: compare bit for bit, and all workers; otherwise to rounding, and those that ended.
    """
    if exact:
        return [
            f"worker {rank} has another result than the undisturbed run's"
            for rank, (one, other) in enumerate(zip(found, expected, strict=True))
            if one != other
        ]
    wrong = [] if found[0] else ["the chief has no result"]
    for rank, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one is None or other is None:
            continue
        for name in other:
            if not np.allclose(_numbers(one[name]), _numbers(other[name]), ROUNDING, ROUNDING):
                wrong.append(f"worker {rank} has another {name} than the undisturbed run's")
    return wrong


def half_written(directory: Path, unreadable: Collection[str]) -> list[str]:
    """What should not be among checkpoints: damaged ones, and files of none.

    Args:
        directory: of the checkpoints.
        unreadable: names of those whose manifest was changed. They may be of any branch, so they
            stay until a checkpoint of the same step replaces them.
    """
    folder = StorageDir.at(directory)
    damaged = {step: what for step, what in verify(folder) if what}
    stay = {step for step in damaged if STEP.format(step) in unreadable}
    wrong = [f"step {step}: {what}" for step, what in damaged.items() if step not in stay]
    whole = [step for step in steps_in(folder) if step not in stay]
    known = {
        p.relative_to(directory).as_posix()
        for s in stay
        for p in directory.glob(f"{STEP.format(s)}/*")
    }
    for step in whole:
        shards = [shard.file for shard in manifest_of(folder, step).shards]
        place = folder / f"step-{step:08d}"
        manifests = list(filter(is_manifest, place.names()))
        wrong += [f"{place}: {len(manifests)} manifests"] if len(manifests) != 1 else []
        names = {*manifests, *shards, *(f"{name}.json" for name in shards)}
        known |= {f"step-{step:08d}/{name}" for name in names}
    found = {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}
    stray = {name for name in found - known if not name.startswith(f"{LEASE_DIR}/")}
    wrong += [f"stray file {name}" for name in sorted(stray)]
    return wrong if whole else [*wrong, "no checkpoint at all"]


def _numbers(values: object) -> np.ndarray:
    if isinstance(values, Mapping):
        return np.concatenate([np.ravel(values[name]) for name in sorted(values)])
    return np.asarray(values, "float64")


def _kind(mark: str) -> str:
    """The kind of a fault, by the name of its mark: 3-FailWrites-worker-1."""
    return mark.split("-")[1]
