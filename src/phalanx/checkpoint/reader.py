"""Find, read and verify checkpoints."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from phalanx.checkpoint.dtypes import from_storage
from phalanx.checkpoint.history import branch_of_last, entries, entry_of, steps_in
from phalanx.checkpoint.manifest import Manifest, Shard
from phalanx.checkpoint.sharding import TensorSpecs
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP
from phalanx.errors import (
    CheckpointCorruptedError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointVersionError,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadedCheckpoint:
    """A checkpoint in memory, its bytes those that were written."""

    manifest: Manifest
    arrays: Mapping[str, np.ndarray]


def manifest_of(folder: StorageDir, step: int) -> Manifest:
    """What the checkpoint of `step` holds.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointCorruptedError: its manifest cannot be read.
        CheckpointVersionError: a newer Phalanx wrote it.
    """
    entry = entry_of(folder, step)
    if entry is None:
        there = ", ".join(map(str, steps_in(folder))) or "none"
        raise CheckpointNotFoundError(
            f"Asked for the checkpoint of step {step} in {folder}; there are: {there}."
        )
    if entry.manifest is None:
        assert entry.error is not None
        raise entry.error
    return entry.manifest


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

    Where the last one is damaged, it is the one that its training followed: never one of a branch
    that was abandoned.

    Raises:
        CheckpointNotFoundError: there is no complete one.
        CheckpointVersionError: the newest was written by a newer Phalanx.
    """
    steps = newest_first(folder)
    for step in steps:
        try:
            return read(folder, step)
        except CheckpointNotFoundError:  # removed since
            continue
        except CheckpointCorruptedError as error:
            _log.warning("passing over a checkpoint: %s", error)
    damaged = f" ({len(steps)} damaged)" if steps else ""
    raise CheckpointNotFoundError(
        f"Asked for the newest checkpoint in {folder}; there is no complete one{damaged}. "
        "Is that the "
        "directory?"
    )


def newest_first(folder: StorageDir) -> list[int]:
    """The steps to resume from, in the order in which to try them.

    Those whose manifest cannot be read come first: when they were committed is unknown.
    """
    found = entries(folder)
    unreadable = [entry.step for entry in found if entry.manifest is None]
    branch = branch_of_last(entry.manifest for entry in found if entry.manifest is not None)
    return [*reversed(unreadable), *(manifest.step for manifest in reversed(branch))]


def verify(folder: StorageDir) -> Iterator[tuple[int, str | None]]:
    """For each committed step what is wrong with it, None where it is complete.

    A training may remove checkpoints meanwhile; those are left out.
    """
    for step in steps_in(folder):
        try:
            read(folder, step)
        except CheckpointNotFoundError:
            continue
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
