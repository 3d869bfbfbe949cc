"""Find, read and verify checkpoints."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from phalanx.checkpoint.dtypes import from_storage
from phalanx.checkpoint.fencing import acceptance_of
from phalanx.checkpoint.manifest import MANIFEST, Manifest, Shard
from phalanx.checkpoint.sharding import TensorSpecs
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP
from phalanx.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointVersionError,
)

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True)
class LoadedCheckpoint:
    """A checkpoint in memory, its bytes those that were written."""

    manifest: Manifest
    arrays: Mapping[str, np.ndarray]


def steps_in(folder: StorageDir) -> list[int]:
    """The steps of all committed checkpoints, oldest first.

    Those that a writer published after another one had replaced it are left out.
    """
    found = map(step_of, folder.names())
    steps = sorted(step for step in found if step is not None)
    steps = [step for step in steps if (folder / STEP.format(step)).has(MANIFEST)]
    accepts = acceptance_of(folder)
    return [step for step in steps if _is_accepted(folder, step, accepts)]


def step_of(name: str) -> int | None:
    """The step of a checkpoint's directory; None where the name is of something else."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match.group(1))


def in_order_of_commit(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The manifests of a directory, the last commit last.

    A training that was restored from an older checkpoint, or that started again, commits smaller
    steps after larger ones, so steps do not tell which checkpoint is the newest. The number of a
    commit (`phalanx.lease`) does. Times order only what no lease orders: checkpoints of a writer
    without one, and those of different leases, where a lease was removed.
    """
    manifests = list(manifests)
    last: dict[str, float] = {}
    for each in manifests:
        lease = each.commit.lease if each.commit else ""
        last[lease] = max(each.written, last.get(lease, each.written))

    def order(each: Manifest) -> tuple[float, int, float, int]:
        commit = each.commit
        if commit is None:
            return last[""], 0, each.written, each.step
        return last[commit.lease], commit.fence, 0.0, each.step

    return sorted(manifests, key=order)


def _by_commit(folder: StorageDir) -> list[int]:
    """The steps of all committed checkpoints, the last commit last, then unreadable ones."""
    manifests, unreadable = [], []
    for step in steps_in(folder):
        try:
            manifests.append(manifest_of(folder, step))
        except CheckpointNotFoundError:  # removed since
            continue
        except (CheckpointCorruptedError, CheckpointVersionError):
            unreadable.append(step)
    return [*(each.step for each in in_order_of_commit(manifests)), *unreadable]


def _is_accepted(folder: StorageDir, step: int, accepts: Callable[[Manifest], bool]) -> bool:
    place = folder / STEP.format(step)
    try:
        return accepts(Manifest.from_json(place.read(MANIFEST), str(place)))
    except FileNotFoundError:  # removed since
        return False
    except CheckpointError:  # damaged, or of a newer version: whoever reads it says so
        return True


def manifest_of(folder: StorageDir, step: int) -> Manifest:
    """What the checkpoint of `step` holds.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointCorruptedError: its manifest cannot be read.
        CheckpointVersionError: a newer Phalanx wrote it.
    """
    place = folder / STEP.format(step)
    try:
        content = place.read(MANIFEST)
    except FileNotFoundError as error:
        there = ", ".join(map(str, steps_in(folder))) or "none"
        raise CheckpointNotFoundError(
            f"Asked for the checkpoint of step {step} in {folder}; there are: {there}."
        ) from error
    return Manifest.from_json(content, str(place))


def read(folder: StorageDir, step: int) -> LoadedCheckpoint:
    """The checkpoint of `step`, every byte held against its checksum.

    Raises:
        CheckpointNotFoundError, CheckpointCorruptedError, CheckpointVersionError: as for
            `manifest_of`, or a shard is missing or differs.
    """
    manifest = manifest_of(folder, step)
    place = folder / STEP.format(step)
    arrays: dict[str, np.ndarray] = {}
    for shard in manifest.shards:
        values = _values(place, shard)
        for piece in shard.pieces:
            value = from_storage(values[piece.key], piece.dtype)
            if not piece.shape or piece.rows == piece.shape[0]:
                arrays[piece.tensor] = value.reshape(piece.shape)
                continue
            whole = arrays.setdefault(piece.tensor, np.empty(piece.shape, value.dtype))
            whole[piece.start : piece.start + piece.rows] = value
    return LoadedCheckpoint(manifest=manifest, arrays=arrays)


def latest(folder: StorageDir) -> LoadedCheckpoint:
    """The checkpoint that was committed last and is complete; damaged ones are reported.

    Raises:
        CheckpointNotFoundError: there is no complete one.
        CheckpointVersionError: the newest was written by a newer Phalanx.
    """
    steps = _by_commit(folder)
    for step in reversed(steps):
        try:
            return read(folder, step)
        except CheckpointCorruptedError as error:
            _log.warning("passing over a checkpoint: %s", error)
    damaged = f" ({len(steps)} damaged)" if steps else ""
    raise CheckpointNotFoundError(
        f"Asked for the newest checkpoint in {folder}; there is no complete one{damaged}. "
        "Is that the "
        "directory?"
    )


def verify(folder: StorageDir) -> Iterator[tuple[int, str | None]]:
    """For each committed step what is wrong with it, None where it is complete."""
    for step in steps_in(folder):
        try:
            read(folder, step)
        except (CheckpointCorruptedError, CheckpointVersionError) as error:
            yield step, str(error)
        else:
            yield step, None


def check_compatible(
    loaded: Manifest, wanted: TensorSpecs, where: str, *, paths: Mapping[str, str] | None = None
) -> None:
    """Hold what a checkpoint has against what is to be restored, before anything changes.

    Args:
        loaded: the checkpoint's manifest.
        wanted: shape and dtype of each tensor that is to be restored.
        where: the checkpoints' place, for messages.
        paths: what people call the tensors.

    Raises:
        CheckpointMismatchError: a tensor is missing, or of another shape or dtype, or there
            are more of a kind ("model/...") than are wanted.
    """
    held = loaded.tensors()
    theirs = loaded.state.get("paths", {})

    def called(name: str) -> str:
        path = (paths or {}).get(name) or theirs.get(name)
        return f"{name} ({path})" if path else name

    wrong = [f"{called(name)} is missing" for name in wanted if name not in held]
    kinds = {name.split("/")[0] for name in wanted}
    more = [name for name in held if name.split("/")[0] in kinds and name not in wanted]
    wrong += [f"{called(name)} has no place in the model" for name in more]
    for name, (shape, dtype) in wanted.items():
        piece = held.get(name)
        if piece is not None and piece.shape != tuple(shape):
            wrong.append(f"{called(name)} has shape {piece.shape}, wanted {tuple(shape)}")
        elif piece is not None and piece.dtype != dtype:
            wrong.append(f"{called(name)} has dtype {piece.dtype}, wanted {dtype}")
    if wrong:
        advice = "Build and compile the model as it was when it was saved."
        others = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointMismatchError(
            f"The checkpoint of step {loaded.step} in {where} does not fit this model: "
            f"{'; '.join(wrong[:5])}{others}. {advice}"
        )


def _values(place: StorageDir, shard: Shard) -> dict[str, np.ndarray]:
    try:
        content = place.read(shard.file)
    except FileNotFoundError as error:
        raise _damaged(place, shard, "is missing") from error
    if len(content) != shard.bytes:
        raise _damaged(place, shard, f"has {len(content)} bytes of {shard.bytes}")
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise _damaged(place, shard, "has another checksum than when it was written")
    try:
        values: dict[str, np.ndarray] = load(content)
    except SafetensorError as error:
        raise _damaged(place, shard, f"is no safetensors file ({error})") from error
    return values


def _damaged(place: StorageDir, shard: Shard, what: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(
        f"In the checkpoint {place}, {shard.file} {what}. Take an older one; `phalanx checkpoint "
        "verify` shows which are complete."
    )
