"""A `fit` and its `Checkpoint`: when to save, what to do then, and how to come back."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import phalanx
from phalanx.callbacks.checkpoint import Checkpoint, Resume, find_checkpoint
from phalanx.checkpoint.reader import LoadedCheckpoint, newest_first, read
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import Snapshot
from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.distributed.step_sync import StepSync
from phalanx.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    WorkerMismatchError,
)
from phalanx.keras_compat.callback_adapters import truncate_after
from phalanx.keras_compat.model_access import steps_trained
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.phase_tracker import phase_tracker, record_moment
from phalanx.training.async_checkpointer import AsyncCheckpointer
from phalanx.training.context import CallContext, broadcast_int
from phalanx.training.save_policy import SavePolicy
from phalanx.training.train_state import TrainProgress, TrainState
from phalanx.worker import preemption

_log = logging.getLogger(__name__)
_fits_done: Counter[str] = Counter()
"""How many fits of this process have come to their end, by directory."""


def forget_fits() -> None:
    """Count fits from none again, as a process does that begins."""
    _fits_done.clear()


class CheckpointManager:
    """Saves one `fit` and restores it; every worker has one, and all do the same.

    Attributes:
        logs: of the epoch that has ended where training resumes; else empty.
        batches_done: how many batches of the epoch that comes next are trained already.
    """

    def __init__(
        self,
        stage: CallContext,
        callback: Checkpoint,
        capture: TrainState,
        *,
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Get ready; all workers must come here together.

        Args:
            stage: where the call runs.
            callback: what was asked.
            capture: reads and writes the state.
            check: raises if training has failed, so that no invalid state is saved.
            clock: seconds, increasing.
        """
        self._stage = stage
        self._options = callback.options
        self._model = stage.model
        self._capture = capture
        self._check = check
        self._folder = self._options.folder(os.environ)
        self._schedule = SavePolicy(self._options.every, self._options.retention.best, clock=clock)
        self._writes = AsyncCheckpointer(
            stage, self._options, self._folder, on_failed=self._schedule.failed, clock=clock
        )
        self._step_sync = StepSync(stage.strategy, stage.topology, clock=clock)
        self._fit = _fits_done[str(self._folder)]
        self.logs: dict[str, float] = {}
        self.batches_done = 0
        self._loaded: LoadedCheckpoint | None = None
        self._is_skipped = False
        self._has_started = False
        self._step = steps_trained(self._model)
        self._resumed_from: int | None = None
        self._began_at = self._step
        self._schedule.saved(self._step)
        callback.is_driven = True
        stage.exit.callback(setattr, callback, "is_driven", False)
        stage.exit.enter_context(preemption.guard())

    def restore_variables(self, callbacks: list[Any]) -> None:
        """Find the newest checkpoint, compare it with the model, and restore the variables.

        Args:
            callbacks: those of this worker, before their `on_train_begin`.

        Raises:
            ConfigurationError: there is one, and the user has asked not to resume from any.
            CheckpointMismatchError, CheckpointVersionError: it is not for this model, or not
                for this Phalanx; nothing has changed.
        """
        with phase_tracker.during("checkpoint"):
            found = latest_on_all_workers(
                self._stage, self._folder, self._options.retry_policy, resume=self._options.resume
            )
            if found is None:
                return
            state = found.manifest.state
            assert_of_a_fit(found, self._folder)
            if state["fit"] < self._fit:
                self._step = self._began_at = step_after(found, self._folder, self._step)
                self._schedule.saved(self._step)
                return
            assert_wanted(found, self._folder, resume=self._options.resume)
            self._capture.check_compatible(found, str(self._folder))
            self._is_skipped = state["fit"] > self._fit
            if not self._is_skipped:
                allowed = self._options.allow_data_change
                self._capture.check_data(found, str(self._folder), allow_change=allowed)
            self._capture.write_variables(found)
            self._loaded = found
            self._step = self._resumed_from = self._began_at = found.manifest.step
            self._schedule.saved(self._step)
            for callback in callbacks:
                truncate_after(callback, math.inf if self._is_skipped else found.manifest.epoch)
            if not self._is_skipped:
                self.batches_done = self._capture.position(found).batch
                self._schedule.restored(self._step, state["best"])
                self._has_started = not state["complete"]
                self.logs = dict(found.manifest.metrics)
        if self._stage.topology.is_chief:
            _log.warning("%s", in_words(found, self._folder))

    def first_epoch(self, epochs: int) -> int | None:
        """The epoch to continue with, `epochs` where nothing is left; None without a checkpoint."""
        if self._loaded is None:
            return None
        manifest = self._loaded.manifest
        done = self._is_skipped or manifest.state["stopped"]
        return max(epochs, manifest.epoch) if done else manifest.epoch

    def has_work_left(self, begin: int, epochs: int) -> bool:
        """Whether the training of the epochs from `begin` has an end before it still."""
        return epochs > begin or self._has_started

    def begin(self, callbacks: list[Any]) -> None:
        """Call after `on_train_begin` of the callbacks: what changes from here is their state."""
        self._capture.note_callbacks(callbacks)
        self._writes.prepare(self._capture.shared())

    def restore_state(self) -> None:
        """Write the rest back, once: before the epoch's `on_epoch_begin`, or in its middle.

        Data and callbacks of a `fit` that is skipped, as a later one wrote the checkpoint, stay as
        they are.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None and not self._is_skipped:
            with phase_tracker.during("checkpoint"):
                self._capture.write(loaded)

    @property
    def steps_until_due(self) -> int | None:
        """How many steps the next execution may have: a checkpoint follows the last one."""
        return self._schedule.steps_until_due(self._step)

    def after_batch(self, epoch: int, batch: int, *, done: int, can_save: bool) -> None:
        """Steps were trained, their hooks have run.

        Args:
            epoch: the epoch under way.
            batch: batches of it that are trained.
            done: of these, how many just now.
            can_save: whether all workers have the same weights, and the epoch continues (where it
                ends, `after_epoch` is called); the same on all workers.

        Raises:
            SystemExit: this process is to go, and has saved.
            CheckpointError: it is to go, and could not save.
        """
        self._step += done
        if not can_save:
            return
        due, stops = self._schedule.is_due_after_step(self._step), False
        if self._step_sync.is_due(self._step):
            timed, stops = self._sync_workers()
            due = due or timed
        if due or stops:
            self._save(TrainProgress(step=self._step, epoch=epoch, batch=batch, since=done))
            if stops:
                self._stop()

    def after_epoch(self, epoch: int, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """An epoch has ended, its validation and hooks included.

        Raises:
            SystemExit: this process is to go, and has saved.
            CheckpointError: it is to go, and could not save.
        """
        due = self._schedule.is_due_after_epoch(epoch, self._step)
        if self._options.retention.best is not None:
            with phase_tracker.during("checkpoint"):
                self._writes.finish()  # an epoch that could not be written is not the best
        best = self._schedule.is_best(logs, self._step)
        timed, stops = self._sync_workers()
        if due or best or timed or stops:
            moment = TrainProgress(step=self._step, epoch=epoch + 1, is_stopped=is_stopped)
            self._save(moment, logs=logs)
            if stops:
                self._stop()

    def end(self, epoch: int | None, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Training has ended well: save its end, and wait until it is there.

        Args:
            epoch: the epoch that would come next; None where nothing was left to train.
            logs: of the last epoch.
            is_stopped: whether a callback has ended it before its last epoch.
        """
        _fits_done[str(self._folder)] += 1
        if epoch is not None:
            moment = TrainProgress(
                step=self._step, epoch=epoch, is_complete=True, is_stopped=is_stopped
            )
            self._save(moment, logs=logs)
            with phase_tracker.during("checkpoint"):
                self._writes.finish()

    def _sync_workers(self) -> tuple[bool, bool]:
        """Whether a checkpoint is due by the chief's clock, and whether some worker is to go."""
        return self._step_sync.sync(
            self._step,
            from_chief=self._schedule.is_due_by_the_clock(),
            from_any=preemption.is_requested(),
        )

    def _save(self, moment: TrainProgress, logs: Mapping[str, Any] | None = None) -> None:
        def read_state() -> Snapshot:  # when it is known whether the one before could be written
            return self._capture.read(
                moment,
                fit=self._fit,
                best=self._schedule.best,
                logs=logs or {},
                lineage=lineage(
                    os.environ,
                    training=self._writes.training,
                    began_at=self._began_at,
                    resumed_from=self._resumed_from,
                ),
            )

        with phase_tracker.during("checkpoint"):
            record_moment(worker_event_log(os.environ))
            self._check()
            self._writes.write(read_state)
        record_moment(worker_event_log(os.environ))  # What follows is no save any more.
        self._schedule.saved(moment.step)

    def _stop(self) -> None:
        with phase_tracker.during("checkpoint"):
            self._writes.finish()
            self._writes.assert_saved(self._step)
        if self._stage.topology.is_chief:
            _log.warning(
                "stopped at step %d, as a signal asked; the same command resumes from there",
                self._step,
            )
        raise SystemExit(RESUME_EXIT_CODE)


def lineage(
    environment: Mapping[str, str], *, training: str, began_at: int, resumed_from: int | None
) -> dict[str, Any]:
    """Who writes a checkpoint, and which ones its training follows; as JSON knows it.

    Args:
        environment: of this process.
        training: distinguishes this `fit` from others.
        began_at: the step where it began.
        resumed_from: the step of the checkpoint that it was resumed from, if it was.
    """
    spec = WorkerSpec.from_environment(environment)
    return {
        "training": training,
        "began_at": began_at,
        "run": "" if spec is None else spec.run_id,
        "attempt": 0 if spec is None else spec.attempt,
        "resumed_from": resumed_from,
        "version": phalanx.__version__,
    }


def checkpointing_of(
    stage: CallContext,
    callbacks: list[Any],
    capture: Callable[..., TrainState],
    *,
    check: Callable[[], None],
) -> CheckpointManager | NullCheckpointManager:
    """What keeps the checkpoints of a `fit` with these callbacks.

    Args:
        stage: where the call runs.
        callbacks: the callbacks of this worker.
        capture: makes what reads and writes the state; its argument says whether to keep iterators.
        check: raises if training has failed.

    Raises:
        WorkerMismatchError: some workers have a `Checkpoint` and some have not.
    """
    callback = find_checkpoint(callbacks)
    has_none = callback is None
    missing, given = on_any_worker(stage.strategy, stage.topology, has_none, not has_none)
    if missing and given:
        raise WorkerMismatchError(
            "fit needs a Checkpoint on every worker or on none, since all write a share; found "
            f"{'none' if callback is None else 'one'} on this worker. Give it to every worker."
        )
    if callback is None:
        return NullCheckpointManager()
    keeps_iterator = callback.options.data == "iterator"
    return CheckpointManager(stage, callback, capture(keeps_iterator=keeps_iterator), check=check)


class NullCheckpointManager:
    """Replaces `CheckpointManager`, and does nothing."""

    steps_until_due: int | None = None
    batches_done = 0

    def __init__(self) -> None:
        """There were no epochs before this `fit`."""
        self.logs: dict[str, float] = {}

    def restore_variables(self, callbacks: list[Any]) -> None:
        """There is nothing to resume from."""

    def begin(self, callbacks: list[Any]) -> None:
        """No state is kept."""

    def first_epoch(self, epochs: int) -> int | None:
        """Training begins where it was asked to."""
        return None

    def has_work_left(self, begin: int, epochs: int) -> bool:
        """Whether there is an epoch to train."""
        return epochs > begin

    def restore_state(self) -> None:
        """There is nothing to restore."""

    def after_batch(self, epoch: int, batch: int, *, done: int, can_save: bool) -> None:
        """Nothing is due."""

    def after_epoch(self, epoch: int, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Nothing is due."""

    def end(self, epoch: int | None, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Nothing is due."""


def latest_on_all_workers(
    stage: CallContext,
    folder: StorageDir,
    retry_policy: RetryPolicy,
    *,
    resume: Resume = True,
) -> LoadedCheckpoint | None:
    """The newest complete checkpoint, None where there is none; all workers must ask together.

    The chief names one after the other, and all read it, so that all take the same.

    Args:
        stage: the call.
        folder: of the checkpoints.
        retry_policy: how often to try again what storage refuses.
        resume: "restart" to take a directory in which all are damaged for an empty one.

    Raises:
        CheckpointVersionError: the newest was written by a newer Phalanx.
        CheckpointCorruptedError: there are checkpoints, and none is complete.
        CheckpointCorruptedError: some workers read a complete one, and others do not.
    """
    steps: list[int] = []
    if stage.topology.is_chief:
        steps = retry_policy.call_with_retry(f"list {folder}", lambda: newest_first(folder))
    candidates = broadcast_int(stage, len(steps))
    for number in range(candidates):
        step = broadcast_int(stage, steps[number] if steps else 0)
        found = _read_on_all_workers(stage, folder, step, retry_policy)
        if found is not None:
            return found
    if candidates and resume != "restart":
        raise CheckpointCorruptedError(
            f"Asked to resume from {folder}; all of its {candidates} checkpoints are damaged. "
            "`phalanx checkpoint verify` says how. Restore a copy of one, give another directory, "
            'or give Checkpoint resume="restart" to train from the beginning.'
        )
    return None


def _read_on_all_workers(
    stage: CallContext, folder: StorageDir, step: int, retry_policy: RetryPolicy
) -> LoadedCheckpoint | None:
    """The checkpoint of a step, None where it is damaged on all workers."""
    found, error = _read(folder, step, retry_policy)
    damaged, complete = on_any_worker(stage.strategy, stage.topology, error is not None, not error)
    if damaged and complete:
        # The listing of a network file system can be older than the checkpoint. Others have read
        # it, so this one is read again after a while.
        if error is not None:
            found, error = _read(folder, step, retry_policy, again=True)
        damaged = on_any_worker(stage.strategy, stage.topology, error is not None)[0]
        if damaged:
            raise CheckpointCorruptedError(
                f"Asked to resume from step {step} of {folder}; some workers read it, and "
                f"{'this one does not' if error else 'others do not'}"
                f"{f' ({error})' if error else ''}. Is it one directory, on storage that all "
                "workers share?"
            ) from error
    if damaged:
        _log.warning("passing over a checkpoint: %s", error)
        return None
    return found


def _read(
    folder: StorageDir, step: int, retry_policy: RetryPolicy, *, again: bool = False
) -> tuple[LoadedCheckpoint | None, CheckpointError | None]:
    """A checkpoint, or what is wrong with it; with `again` that is tried again too."""
    wrong: CheckpointError | None = None

    def action() -> LoadedCheckpoint | None:
        nonlocal wrong
        try:
            return read(folder, step)
        except (CheckpointCorruptedError, CheckpointNotFoundError) as error:
            wrong = error
            if again:
                raise OSError(str(error)) from error
            return None

    try:
        found = retry_policy.call_with_retry(f"read step {step} of {folder}", action)
    except OSError:
        if wrong is None:
            raise
        found = None
    return found, None if found is not None else wrong


def assert_of_a_fit(found: LoadedCheckpoint, folder: StorageDir) -> None:
    """Refuse what `phalanx.checkpoint.save` wrote, which has no place in any data."""
    if "position" not in found.manifest.state:
        raise ConfigurationError(
            f"{folder} holds the checkpoint of step {found.manifest.step} by "
            "phalanx.checkpoint.save, which a fit cannot resume from. Give Checkpoint a directory "
            "of its own."
        )


def assert_wanted(found: LoadedCheckpoint, folder: StorageDir, *, resume: Resume) -> None:
    """Refuse to continue where the user has asked not to."""
    if not resume:
        raise ConfigurationError(
            f"Checkpoint was given resume=False, but {folder} holds the checkpoint of step "
            f"{found.manifest.step}. Remove it, give another directory, or let it resume."
        )


def step_after(found: LoadedCheckpoint, folder: StorageDir, updates: int) -> int:
    """The step where a `fit` begins after one of this process that has ended in the same directory.

    Args:
        found: what that one saved at its end.
        folder: of the checkpoints.
        updates: what the optimizer has counted, which leaves out steps that a loss scale skipped.

    Raises:
        ConfigurationError: this is a second training, next to that one.
    """
    ended_at = found.manifest.step
    step = ended_at + updates - int(found.manifest.state.get("updates", ended_at))
    if step < ended_at:
        raise ConfigurationError(
            f"Checkpoint was given {folder}, where a fit before this one has come to step "
            f"{ended_at}; this one begins at step {step}. Give each training a directory of its "
            "own."
        )
    return step


def in_words(found: LoadedCheckpoint, folder: StorageDir) -> str:
    """What was found, for the user."""
    manifest = found.manifest
    if manifest.state["complete"]:
        return f"{folder} holds the end of this training, at step {manifest.step}"
    return f"resuming from step {manifest.step} (epoch {manifest.epoch + 1}) of {folder}"
