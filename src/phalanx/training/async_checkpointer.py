"""Writes the checkpoints of a `fit` in parallel to training, one at a time."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import Any

from phalanx.callbacks.checkpoint import CheckpointOptions
from phalanx.checkpoint.async_writer import AsyncWriter
from phalanx.checkpoint.fencing import Fence, LateLease, held
from phalanx.checkpoint.retention import prune
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP, ShardSnapshot, ShardWriter, Snapshot
from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.errors import (
    CheckpointError,
    ConfigurationError,
    LeaseLostError,
    UnavailableError,
)
from phalanx.lease.records import LEASE_DIR, record_name
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.events import CheckpointEvent, CheckpointFailed
from phalanx.training.context import CallContext, broadcast_int

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_SECONDS_TO_FINISH = 15.0  # for a write under way when training ends in an error
_FIRST = 3
"""Training ends after as many failed checkpoints if none was written before."""
_SECONDS_TO_SEE_LEASE = 90.0  # NFS clients keep a listing for up to 60 s (acdirmax, nfs(5))


class AsyncCheckpointer:
    """This worker's part in writing one checkpoint after the other."""

    def __init__(
        self,
        stage: CallContext,
        options: CheckpointOptions,
        folder: StorageDir,
        *,
        on_failed: Callable[[int], None] = lambda step: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Get ready; all workers must come here together.

        Args:
            stage: the call.
            options: what was asked.
            folder: of the checkpoints.
            on_failed: gets, on all workers, the step of a checkpoint that could not be written.
            clock: seconds, increasing.
        """
        self._stage = stage
        self._options = options
        self._folder = folder
        self._on_failed = on_failed
        self._clock = clock
        self._background = AsyncWriter()
        self._gives_up = Event()
        self._count = 0
        self._step = 0
        self._last_saved: int | None = None
        self._failures = 0
        self._why = ""
        self._writer = replace(
            writer_of(stage, folder, options.retry_policy),
            is_given_up=self._gives_up.is_set,
            peer_timeout=options.peer_timeout,
        )
        self._writing = self._writer
        stage.exit.push(self._leave)

    @property
    def training(self) -> str:
        """The name of this `fit` in its checkpoints' history; equal on all workers."""
        return self._writer.attempt

    def prepare(self, arrays: Mapping[str, Any]) -> None:
        """Have memory ready for this worker's share of these, in parallel to training."""
        self._background.start(lambda: self._writer.prepare(arrays))

    def write(self, read: Callable[[], Snapshot]) -> None:
        """Copy the state that `read` gives, when the checkpoint before is written.

        Raises:
            CheckpointError: one could not be written, and the user has asked to end then; or the
                first ones all failed.
        """
        began = self._clock()
        self.finish()
        self._end_if_nothing_is_saved()
        self._count, self._why = self._count + 1, ""
        writer = replace(self._writer, attempt=f"{self._writer.attempt}-{self._count}")
        share = writer.take(read())
        self._step, self._writing = share.snapshot.step, writer
        blocking_seconds = self._clock() - began
        self._background.start(lambda: self._store(writer, share, blocking_seconds))
        if not self._options.async_save:
            self.finish()

    def finish(self) -> None:
        """Wait for the write under way, on all workers, and report what failed.

        Raises:
            CheckpointError: as for `write`.
        """
        if wait_for_all(self._stage, self._background, self._gives_up):
            self._on_failed(self._step)
        self._gives_up.clear()
        error = self._background.take_error()
        if error is not None and self._stage.topology.is_chief:
            self._writing.discard(self._step)
        if error is not None:
            self._report(error)

    def assert_saved(self, step: int) -> None:
        """Check, on all workers, that the last checkpoint is that of `step`.

        Raises:
            CheckpointError: it could not be written.
        """
        is_chief = self._stage.topology.is_chief  # which alone knows whether it has committed
        if any(self._on_any_worker(is_chief and self._last_saved != step)):
            raise CheckpointError(
                f"Asked to save and stop at step {step}; its checkpoint in {self._folder} could "
                f"not be written{self._why}. Training resumes from the last complete one."
            )

    def _end_if_nothing_is_saved(self) -> None:
        is_chief = self._stage.topology.is_chief  # which alone knows whether it has committed
        saves_nothing = is_chief and self._last_saved is None and self._failures >= _FIRST
        if any(self._on_any_worker(saves_nothing)):
            raise CheckpointError(
                f"Asked to save checkpoints in {self._folder}; the first {_FIRST} could not be "
                "written, so this training saves nothing. The log of worker 0 says why. Look at "
                "the directory's permissions, space and address."
            )

    def _store(self, writer: ShardWriter, share: ShardSnapshot, blocking_seconds: float) -> None:
        began = self._clock()
        manifest = writer.store(share)
        self._failures = 0
        if manifest is None:
            return
        self._last_saved = manifest.step
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
        if isinstance(error, LeaseLostError | UnavailableError):
            raise error  # another process owns the directory: nothing of this training will count
        if self._options.on_failure == "raise":
            raise CheckpointError(
                f"The checkpoint of step {self._step} in {self._folder} could not be written "
                f'({error}), and Checkpoint was given on_failure="raise". The last complete one is '
                "still there."
            ) from error
        self._failures += 1
        self._why = f" ({error})"
        if self._failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th ... in a row
            _log.warning(
                "the checkpoint of step %d in %s could not be written, training continues: %s%s",
                self._step,
                self._folder,
                error,
                self._what_is_lost(),
            )
        if (event_log := worker_event_log(os.environ)) is not None:
            event_log.append(CheckpointFailed(step=self._step, error=str(error)))

    def _what_is_lost(self) -> str:
        if self._failures == 1:
            return ""
        last = "none" if self._last_saved is None else f"that of step {self._last_saved}"
        return f" ({self._failures} in a row have failed; the last that was written is {last})"

    def _leave(self, kind: type[BaseException] | None, *_: object) -> None:
        """Training ends in an error: a write under way may still become whole."""
        if kind is not None and not self._background.wait(_SECONDS_TO_FINISH):
            self._gives_up.set()

    def _on_any_worker(self, *flags: bool) -> list[bool]:
        return on_any_worker(self._stage.strategy, self._stage.topology, *flags)


def wait_for_all(stage: CallContext, background: AsyncWriter, gives_up: Event) -> bool:
    """Wait until every worker has written its shard or failed, and the chief has committed.

    The chief waits for the shards of the others. One that could not write its shard may be
    unable to leave a note of that too, so it says so here. A collective.

    Args:
        stage: the call.
        background: writes.
        gives_up: is set where the chief is to wait for the others no longer.

    Returns:
        Whether some worker has failed; the same on all workers.
    """
    failed, is_writing = False, True
    while is_writing:
        is_done = background.wait(_POLL_SECONDS)
        failed, is_writing = on_any_worker(
            stage.strategy, stage.topology, background.failed, not is_done
        )
        if failed:
            gives_up.set()
    return failed


def writer_of(stage: CallContext, folder: StorageDir, retry_policy: RetryPolicy) -> ShardWriter:
    """This worker's writer; its `attempt` distinguishes what this attempt writes from what an
    earlier one left. A collective: all workers must call it.

    The chief holds the lease of the folder until the call ends.

    Raises:
        UnavailableError: another process writes there.
        ConfigurationError: a worker does not see the chief's files there.
    """
    lease = _lease_of(stage, folder, retry_policy)
    return ShardWriter(
        folder=folder,
        rank=stage.topology.rank,
        workers=stage.topology.workers,
        attempt=f"{broadcast_int(stage, uuid.uuid4().int & 0xFFFFFFFF):08x}",
        retry_policy=retry_policy,
        lease=lease,
    )


def _lease_of(stage: CallContext, folder: StorageDir, retry_policy: RetryPolicy) -> Fence | None:
    """The lease on the chief, None on others; storage that fails now may not when it is written."""
    lease: Fence | None = None
    refused: UnavailableError | None = None
    there = 0
    if stage.topology.is_chief:
        try:
            own = stage.exit.enter_context(held(folder))
            lease, there = own, own.fence
        except UnavailableError as error:
            refused = error
        except OSError as error:
            _log.warning("cannot take the lease of %s yet: %s", folder, error)
            lease = LateLease(lambda: stage.exit.enter_context(held(folder)))
    there = broadcast_int(stage, -1 if refused else there)
    if there < 0:
        raise refused or UnavailableError(
            f"Worker 0 could not take the checkpoint directory {folder} for this training. Its log "
            "says why."
        )
    if there:
        _assert_shared(stage, folder, there, retry_policy)
    return lease


def _assert_shared(
    stage: CallContext, folder: StorageDir, number: int, retry_policy: RetryPolicy
) -> None:
    """Refuse a directory that is another one on another host, before anything is trained.

    Args:
        stage: the call.
        folder: of the checkpoints.
        number: of the lease's record that the chief has there.
        retry_policy: how often to try again what storage refuses.
    """
    name, leases = record_name(number), folder / LEASE_DIR
    spec = WorkerSpec.from_environment(os.environ)
    hosts = {address.rpartition(":")[0] for address in spec.addresses} if spec else set()
    end = time.monotonic() + (0.0 if len(hosts) == 1 else _SECONDS_TO_SEE_LEASE)
    sees, why = stage.topology.is_chief, ""
    while not sees:
        try:
            sees = retry_policy.call_with_retry(f"list {leases}", lambda: leases.has(name))
            why = ""
        except OSError as error:
            why = f" ({error})"
        if sees or time.monotonic() > end:
            break
        time.sleep(0.2)
    if on_any_worker(stage.strategy, stage.topology, not sees)[0]:
        who = "another worker" if sees else f"worker {stage.topology.rank}"
        raise ConfigurationError(
            f"Asked for checkpoints in {folder}; worker 0 took that directory, and {who} does not "
            f"see there what it wrote{why}. Give a directory on storage that all hosts share, such "
            "as NFS or s3://."
        )
