"""One disturbed run: start it, wait for its end, and look whether it is as if undisturbed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.manifest import is_manifest
from phalanx.checkpoint.reader import manifest_of, verify
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.testing.chaos import Plan, command
from soak.plans import WORKERS, kind_of, plan_of, retries_of

TRAINING = Path(__file__).with_name("training.py")
MARK = "PHALANX_SOAK"
DEADLINE = 900.0
OPTIONS = (
    "--workers", str(WORKERS), "--seed", "11", "--max-restarts", "20", "--hang-timeout", "30",
    "--tee", "none",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        seed: of its plan.
        happened: how many faults of each kind came about.
        restarts: how often the worker group was restarted.
        seconds: how long it took.
        wrong: what is not as it should be; nothing, if all is well.
    """

    seed: int
    happened: Counter[str]
    restarts: int
    seconds: float
    wrong: tuple[str, ...]


def disturbed(seed: int, place: Path, expected: Sequence[object]) -> Outcome:
    """Run the training with the faults of `seed`, in the directory `place`."""
    began = time.monotonic()
    code, said, left = _run(place, plan_of(seed), retries=retries_of(seed), kind=kind_of(seed))
    (place / "said.txt").write_text(said)
    run = place / "runs" / "run"
    wrong = [f"exit code {code}"] if code else []
    wrong += [f"left running: {process}" for process in left]
    if not code and results(place) != expected:
        wrong.append("another result than the undisturbed run's")
    wrong += half_written(place / "checkpoints")
    return Outcome(
        seed=seed,
        happened=Counter(_kind(mark.name) for mark in run.glob("chaos/*")),
        restarts=max(0, len(list(run.glob("attempts/*"))) - 1),
        seconds=time.monotonic() - began,
        wrong=tuple(wrong),
    )


def undisturbed(kind: str, place: Path) -> list[object]:
    """What each worker comes to when nothing happens.

    Raises:
        RuntimeError: not even that run ended well.
    """
    code, said, _ = _run(place, (), retries=5, kind=kind)
    if code:
        raise RuntimeError(f"the undisturbed run ended with exit code {code}:\n{said}")
    return results(place)


def results(place: Path) -> list[object]:
    """What each worker wrote down at its end, by rank; None where it did not."""
    files = [place / f"result-{rank}.json" for rank in range(WORKERS)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def half_written(directory: Path) -> list[str]:
    """What should not be among checkpoints: damaged ones, and files of none."""
    folder = StorageDir.at(directory)
    wrong = [f"step {step}: {what}" for step, what in verify(folder) if what]
    whole = steps_in(folder)
    known = set()
    for step in whole:
        shards = [shard.file for shard in manifest_of(folder, step).shards]
        place = folder / f"step-{step:08d}"
        manifests = list(filter(is_manifest, place.names()))
        wrong += [f"{place}: {len(manifests)} manifests"] if len(manifests) != 1 else []
        names = {*manifests, *shards, *(f"{name}.json" for name in shards)}
        known |= {f"step-{step:08d}/{name}" for name in names}
    found = {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}
    wrong += [f"stray file {name}" for name in sorted(found - known)]
    return wrong if whole else [*wrong, "no checkpoint at all"]


def _run(place: Path, plan: Plan, *, retries: int, kind: str) -> tuple[int, str, list[str]]:
    """The exit code, what the command said, and the processes that it left."""
    place.mkdir(parents=True)
    mark = uuid.uuid4().hex
    checkpoints = f"faulty+file://{place / 'checkpoints'}"
    script = (str(TRAINING), checkpoints, str(place), str(retries), kind)
    options = (*OPTIONS, "--name", "run", "--env", f"{MARK}={mark}")
    words = [sys.executable, "-m", "phalanx", "run", *options, *command(plan, *script)]
    (place / "command.txt").write_text(shlex.join(words) + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    process = subprocess.Popen(
        words,
        cwd=place,
        env={**environment, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate()
        said += f"\nno end within {DEADLINE:.0f} s\n"
        return 1, said, _left(mark)
    return process.returncode, said, _left(mark)


def _left(mark: str) -> list[str]:
    """The processes of a run that are still there; they are ended now."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(shlex.join(process.cmdline())[:120])
                process.kill()
        except psutil.Error:
            continue
    return found


def _kind(mark: str) -> str:
    """The kind of a fault, by the name of its mark: 3-FailWrites-worker-1."""
    return mark.split("-")[1]
