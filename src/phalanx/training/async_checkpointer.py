"""Writes the checkpoints of a `fit` in parallel to training, one at a time."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from phalanx.callbacks.checkpoint import CheckpointOptions
from phalanx.checkpoint.async_writer import AsyncWriter
from phalanx.checkpoint.fencing import Fence, LateLease, held
from phalanx.checkpoint.retention import prune
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP, ShardSnapshot, ShardWriter, Snapshot
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.errors import CheckpointError, ConfigurationError, LeaseLostError
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.events import CheckpointEvent, CheckpointFailed
from phalanx.training.context import CallContext, broadcast_int

_log = logging.getLogger(__name__)
_SECONDS_TO_FINISH = 15.0  # for a write under way when training ends in an error


class AsyncCheckpointer:
    """This worker's part in writing one checkpoint after the other."""

    def __init__(
        self,
        stage: CallContext,
        options: CheckpointOptions,
        folder: StorageDir,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Get ready; all workers must come here together."""
        self._stage = stage
        self._options = options
        self._folder = folder
        self._clock = clock
        self._background = AsyncWriter()
        self._gives_up = False
        self._count = 0
        self._step = 0
        self._writer = replace(
            writer_of(stage, folder, options.retry_policy), is_given_up=lambda: self._gives_up
        )
        stage.exit.push(self._leave)

    def prepare(self, arrays: Mapping[str, Any]) -> None:
        """Have memory ready for this worker's share of these, in parallel to training."""
        self._background.start(lambda: self._writer.prepare(arrays))

    def write(self, read: Callable[[], Snapshot]) -> None:
        """Copy the state that `read` gives, when the checkpoint before is written.

        Raises:
            CheckpointError: one could not be written, and the user has asked to end then.
        """
        began = self._clock()
        self.finish()
        self._count += 1
        writer = replace(self._writer, attempt=f"{self._writer.attempt}-{self._count}")
        share = writer.take(read())
        self._step = share.snapshot.step
        blocking_seconds = self._clock() - began
        self._background.start(lambda: self._store(writer, share, blocking_seconds))
        if not self._options.async_save:
            self.finish()

    def finish(self) -> None:
        """Wait for the write under way, on all workers, and report what failed.

        Raises:
            CheckpointError: as for `write`.
        """
        self._gives_up = self._on_any_worker(self._background.failed)
        self._background.wait()
        self._gives_up = False
        error = self._background.take_error()
        if error is not None:
            self._report(error)
        self._on_any_worker(False)  # no worker continues before the chief has committed

    def _store(self, writer: ShardWriter, share: ShardSnapshot, blocking_seconds: float) -> None:
        began = self._clock()
        manifest = writer.store(share)
        if manifest is None:
            return
        if (event_log := worker_event_log(os.environ)) is not None:
            saved = CheckpointEvent(
                step=manifest.step,
                epoch=manifest.epoch,
                path=str(self._folder / STEP.format(manifest.step)),
                seconds=self._clock() - began,
                bytes=manifest.size,
                blocking_seconds=blocking_seconds,
            )
            event_log.append(saved)
        with suppress(OSError):  # what is too much now goes with the next
            step = manifest.step
            prune(self._folder, self._options.retention, saved=step, uncommitted_before=step)

    def _report(self, error: Exception) -> None:
        if isinstance(error, LeaseLostError | ConfigurationError):
            raise error  # another process owns the directory: nothing of this training will count
        if self._options.on_failure == "raise":
            raise CheckpointError(
                f"The checkpoint of step {self._step} in {self._folder} could not be written "
                f'({error}), and Checkpoint was given on_failure="raise". The last complete one is '
                "still there."
            ) from error
        _log.warning(
            "the checkpoint of step %d in %s could not be written, training continues: %s",
            self._step,
            self._folder,
            error,
        )
        if (event_log := worker_event_log(os.environ)) is not None:
            event_log.append(CheckpointFailed(step=self._step, error=str(error)))

    def _leave(self, kind: type[BaseException] | None, *_: object) -> None:
        """Training ends in an error: a write under way may still become whole."""
        if kind is not None and not self._background.wait(_SECONDS_TO_FINISH):
            self._gives_up = True

    def _on_any_worker(self, flag: bool) -> bool:
        return on_any_worker(self._stage.strategy, self._stage.place, flag)[0]


def writer_of(stage: CallContext, folder: StorageDir, retry_policy: RetryPolicy) -> ShardWriter:
    """This worker's writer; its `attempt` tells what this attempt writes from what an
    earlier one left. All workers must come here together.

    The chief holds the lease of the folder until the call ends.

    Raises:
        ConfigurationError: another process writes there.
    """
    lease = _lease_of(stage, folder)
    return ShardWriter(
        folder=folder,
        rank=stage.place.rank,
        workers=stage.place.workers,
        attempt=f"{broadcast_int(stage, uuid.uuid4().int & 0xFFFFFFFF):08x}",
        retry_policy=retry_policy,
        lease=lease,
    )


def _lease_of(stage: CallContext, folder: StorageDir) -> Fence | None:
    """The lease on the chief, None on others; storage that fails now may not when it is written."""
    lease: Fence | None = None
    refused: ConfigurationError | None = None
    if stage.place.is_chief:
        try:
            lease = stage.exit.enter_context(held(folder))
        except ConfigurationError as error:
            refused = error
        except OSError as error:
            _log.warning("cannot take the lease of %s yet: %s", folder, error)
            lease = LateLease(lambda: stage.exit.enter_context(held(folder)))
    if not broadcast_int(stage, int(refused is None)):
        raise refused or ConfigurationError(
            f"Worker 0 could not take the checkpoint directory {folder} for this training. Its log "
            "says why."
        )
    return lease
