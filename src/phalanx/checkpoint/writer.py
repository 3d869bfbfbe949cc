"""Write a checkpoint: every worker its shard, then the chief the manifest.

The workers speak through the folder alone, so that writing can continue in parallel to training: a
collective in a second thread would wait for one of the training's.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
from safetensors.numpy import save

from phalanx.checkpoint.dtypes import to_storage
from phalanx.checkpoint.fencing import Fence, publish
from phalanx.checkpoint.manifest import (
    Manifest,
    Piece,
    Shard,
    is_manifest,
    shard_from_json,
    shard_to_json,
)
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.sharding import describe, plan_shards, take, whole
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.errors import CheckpointError

# Fresh memory costs many times what copying into it does: the system hands it out page by page.
# PyTorch keeps such buffers for its asynchronous checkpoints too (torch.distributed.checkpoint,
# `cache_staged_state_dict`).

_CHUNK = 16 << 20
"""Bytes that one thread copies at a time."""
_THREADS = min(4, os.cpu_count() or 1)


class Staging:
    """Buffers by the key of what they hold."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._held: dict[str, np.ndarray] = {}

    def reserve(self, pieces: Iterable[Piece]) -> None:
        """Have memory ready for `pieces`, so that the first copy is as fast as the others."""
        for piece in pieces:
            shape = (piece.rows, *piece.shape[1:]) if piece.shape else ()
            self._buffer(piece.key, shape, np.dtype(piece.dtype)).fill(0)

    def copy(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Copies of `values`, in memory that the next `copy` writes over."""
        buffers = {key: self._buffer(key, v.shape, v.dtype) for key, v in values.items()}
        chunks = [chunk for key, v in values.items() for chunk in _chunks(buffers[key], v)]
        if len(chunks) <= len(values):  # all small: threads would cost more than they give
            list(starmap(np.copyto, chunks))
        else:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda chunk: np.copyto(*chunk), chunks))
        return buffers

    def _buffer(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        held = self._held.get(key)
        if held is None or held.shape != shape or held.dtype != dtype:
            held = self._held[key] = np.empty(shape, dtype)
        return held


def _chunks(to: np.ndarray, source: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parts of both that belong together, to be copied side by side."""
    if source.nbytes <= _CHUNK or not source.flags.c_contiguous:
        return [(to, source)]
    step = _CHUNK // source.dtype.itemsize
    flat_to, flat = to.reshape(-1), source.reshape(-1)
    return [(flat_to[i : i + step], flat[i : i + step]) for i in range(0, flat.size, step)]


STEP = "step-{:08d}"
PEER_TIMEOUT = 600.0
FAILED_MARKER = ".failed"
"""Ends the name of the note of a worker that could not write its share."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state of training in host memory.

    Attributes:
        step: training steps done.
        epoch: the epoch it lies in.
        arrays: every tensor by name, the same on every worker: NumPy arrays, or what has
            `shape`, `dtype` and gives NumPy arrays when rows are taken of it.
        own: tensors by name that this worker alone has.
        state: what is no tensor, as JSON knows it; the chief's is written.
        metrics: numbers that `best` may go by.
    """

    step: int
    epoch: int
    arrays: Mapping[str, Any]
    own: Mapping[str, np.ndarray] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardSnapshot:
    """What one worker writes of a snapshot, in memory of its own.

    Attributes:
        snapshot: what it is a share of; its arrays may have changed since.
        pieces: what this worker writes.
        values: the rows of each, by the piece's key.
    """

    snapshot: Snapshot
    pieces: tuple[Piece, ...]
    values: Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class ShardWriter:
    """One worker's part in writing checkpoints.

    Attributes:
        folder: where all checkpoints of the run are.
        rank: this worker, from 0; worker 0 commits.
        workers: how many write.
        attempt: distinguishes this start of the worker group from others, whose files may be
            left there.
        retry_policy: how often to try again.
        peer_timeout: seconds that the chief waits for the others' shares after the last one came.
        is_given_up: whether the chief is to wait for the others no longer.
        lease: the chief's lease of the folder; None to publish without one.
        staging: the memory that a share is copied to; the next one is copied over it.
        clock: seconds since the epoch, for the manifest.
        timer: seconds, increasing, for waits.
        sleep: waits.
    """

    folder: StorageDir
    rank: int = 0
    workers: int = 1
    attempt: str = "0"
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    peer_timeout: float = PEER_TIMEOUT
    is_given_up: Callable[[], bool] = lambda: False
    lease: Fence | None = None
    staging: Staging = field(default_factory=Staging)
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def write(self, snapshot: Snapshot) -> Manifest | None:
        """Write this worker's share; on the chief, commit once all have theirs.

        The same as `store` of what `take` gives.
        """
        return self.store(self.take(snapshot))

    def prepare(self, arrays: Mapping[str, Any]) -> None:
        """Have memory ready for this worker's share of `arrays`."""
        self.staging.reserve(self._share_of(arrays))

    def take(self, snapshot: Snapshot) -> ShardSnapshot:
        """Copy what this worker is to write; training may continue when it is done.

        The share taken before must be stored by then: its memory is used again.
        """
        shared, own = self._share_of(snapshot.arrays), whole(describe(snapshot.own))
        values = self.staging.copy({**take(snapshot.arrays, shared), **take(snapshot.own, own)})
        return ShardSnapshot(snapshot=snapshot, pieces=shared + own, values=values)

    def _share_of(self, arrays: Mapping[str, Any]) -> tuple[Piece, ...]:
        return plan_shards(describe(arrays), self.workers)[self.rank]

    def store(self, share: ShardSnapshot) -> Manifest | None:
        """Write a share; on the chief, commit once all have written theirs.

        Returns:
            The manifest on the chief, None on others.

        Raises:
            OSError: storage refused, as often as it was tried.
            CheckpointError: the others' shards did not come.
            LeaseLostError: another process has taken over the folder; nothing was committed.
        """
        place = self.folder / STEP.format(share.snapshot.step)
        try:
            shard = self._write_shard(place, share)
            note = f"{shard.file}.json"
            self._try(f"write {note} in {place}", lambda: place.write(note, shard_to_json(shard)))
        except OSError as error:
            with suppress(OSError):  # so that the chief need not wait for it
                place.write(self._file(self.rank) + FAILED_MARKER, str(error).encode())
            raise
        return self._commit(place, share.snapshot, shard) if self.rank == 0 else None

    def discard(self, step: int) -> None:
        """Remove what all workers have written of a checkpoint that failed; none may be writing.

        Nothing goes where a manifest is: storage may have published it and reported an error.
        """
        place = self.folder / STEP.format(step)
        with suppress(OSError):  # what is left now goes with the next checkpoint
            names = place.names()
            if not any(map(is_manifest, names)):
                for name in names:
                    if f".{self.attempt}." in name:
                        place.remove(name)

    def _write_shard(self, place: StorageDir, share: ShardSnapshot) -> Shard:
        content = save({key: to_storage(value) for key, value in share.values.items()})
        name = self._file(self.rank)
        self._try(f"write {name} in {place}", lambda: place.write(name, content))
        digest = hashlib.sha256(content).hexdigest()
        return Shard(file=name, bytes=len(content), sha256=digest, pieces=share.pieces)

    def _commit(self, place: StorageDir, snapshot: Snapshot, own: Shard) -> Manifest:
        manifest = Manifest(
            step=snapshot.step,
            epoch=snapshot.epoch,
            written=self.clock(),
            shards=tuple(self._shards(place, own)),
            state=snapshot.state,
            metrics=snapshot.metrics,
        )
        # Listed before the commit: what comes later is of a process that has taken over.
        before = self._names(place)
        manifest, name = publish(place, manifest, self.lease, self.retry_policy)
        self._remove_leftovers(place, before - {name}, manifest)
        return manifest

    def _remove_leftovers(self, place: StorageDir, names: set[str], manifest: Manifest) -> None:
        """Of writings of the same step that were given up, or that this one replaces."""
        files = {shard.file for shard in manifest.shards}
        leftovers = names - files - {f"{file}.json" for file in files}
        with suppress(OSError):
            for name in sorted(leftovers, key=is_manifest, reverse=True):  # before their shards
                place.remove(name)

    def _shards(self, place: StorageDir, own: Shard) -> list[Shard]:
        notes = [f"{self._file(rank)}.json" for rank in self._ranks if rank != self.rank]
        deadline, waits_for = self.timer() + self.peer_timeout, len(notes)
        while missing := sorted(set(notes) - (there := self._names(place))):
            if len(missing) < waits_for:
                deadline, waits_for = self.timer() + self.peer_timeout, len(missing)
            if self.is_given_up() or any(
                self._file(r) + FAILED_MARKER in there for r in self._ranks
            ):
                raise CheckpointError(
                    f"Asked to write the checkpoint {place}; another worker could not write its "
                    f"share (missing: {', '.join(missing)}). Its log says why."
                )
            if self.timer() > deadline:
                raise CheckpointError(
                    f"Asked to write the checkpoint {place}; "
                    f"{len(missing)} of {self.workers} workers have not written their share, and "
                    f"none came for {self.peer_timeout:.0f} s (missing: {', '.join(missing)}). Is "
                    "the storage slow? Give Checkpoint a larger peer_timeout."
                )
            self.sleep(0.05)
        found = (self._try(f"read {note}", partial(place.read, note)) for note in notes)
        shards = [own, *(shard_from_json(content, str(place)) for content in found)]
        lost = sorted({shard.file for shard in shards} - self._names(place))
        if lost:
            raise CheckpointError(
                f"Asked to commit the checkpoint {place}; {', '.join(lost)} was written and is "
                "missing. Does something else remove files there?"
            )
        return shards

    @property
    def _ranks(self) -> range:
        return range(self.workers)

    def _names(self, place: StorageDir) -> set[str]:
        return set(self._try(f"list {place}", place.names))

    def _file(self, rank: int) -> str:
        return f"shard-{rank}-of-{self.workers}.{self.attempt}.safetensors"

    def _try(self, what: str, action: Callable[[], Any]) -> Any:
        return self.retry_policy.call_with_retry(what, action)
