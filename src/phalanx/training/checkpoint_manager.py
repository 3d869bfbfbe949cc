"""A `fit` and its `Checkpoint`: when to save, what to do then, and how to come back."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from phalanx.callbacks.checkpoint import Checkpoint, checkpoint_among
from phalanx.checkpoint.reader import Loaded, newest, read
from phalanx.checkpoint.retry import Patience
from phalanx.checkpoint.storage_dir import Folder
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.distributed.step_sync import Rendezvous
from phalanx.errors import DisagreementError, NoCheckpointError, OptionError
from phalanx.keras_compat.callback_adapters import go_on_from
from phalanx.keras_compat.model_access import steps_trained
from phalanx.launch.preemption import RESUME_EXIT_CODE
from phalanx.monitoring.phase_tracker import pulse
from phalanx.training.async_checkpointer import CheckpointWrites
from phalanx.training.context import Stage, chiefs_number
from phalanx.training.save_policy import SaveSchedule
from phalanx.training.train_state import Capture, Moment
from phalanx.worker import preemption

_log = logging.getLogger(__name__)
_fits_done: Counter[str] = Counter()
"""How many fits of this process have come to their end, by directory."""


def forget_fits() -> None:
    """Count fits from none again, as a process does that begins."""
    _fits_done.clear()


class Checkpointing:
    """Saves one `fit` and brings it back; every worker has one, and all do the same."""

    def __init__(
        self,
        stage: Stage,
        callback: Checkpoint,
        capture: Capture,
        *,
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Get ready; all workers must come here together.

        Args:
            stage: where the call runs.
            callback: what was asked.
            capture: reads and writes the state.
            check: raises where training has gone wrong, so that nothing wrong is saved.
            clock: seconds, increasing.
        """
        self._stage = stage
        self._options = callback.options
        self._model = stage.model
        self._capture = capture
        self._check = check
        self._folder = self._options.folder(os.environ)
        self._writes = CheckpointWrites(stage, self._options, self._folder, clock=clock)
        self._rendezvous = Rendezvous(stage.strategy, stage.place, clock=clock)
        self._fit = _fits_done[str(self._folder)]
        self.logs: dict[str, float] = {}
        self._loaded: Loaded | None = None
        self._begun = False
        self._schedule = SaveSchedule(
            self._options.every, self._options.retention.best, clock=clock
        )
        self._step = steps_trained(self._model)
        self._schedule.saved(self._step)
        callback.is_driven = True
        stage.exit.callback(setattr, callback, "is_driven", False)
        stage.exit.enter_context(preemption.listening())

    def look(self, callbacks: list[Any]) -> None:
        """Find the newest checkpoint, hold it against the model, and bring the variables back.

        Args:
            callbacks: those of this worker, which have not heard of the training yet.

        Raises:
            OptionError: there is one, and the user has asked not to go on from any.
            MismatchedCheckpointError, NewerCheckpointError: it is not for this model, or not
                for this Phalanx; nothing has changed.
        """
        with pulse.during("checkpoint"):
            found = newest_for_all(self._stage, self._folder, self._options.patience)
            if found is None:
                return
            state = found.manifest.state
            assert_of_a_fit(found, self._folder)
            if state["fit"] < self._fit:
                assert_behind(found, self._folder, self._step)
                return
            assert_wanted(found, self._folder, resume=self._options.resume)
            self._capture.assert_fits(found, str(self._folder))
            self._capture.write_variables(found)
            self._loaded = found
            self._step = found.manifest.step
            self._schedule.saved(self._step)
            self._schedule.best = state["best"]
            self._begun = state["fit"] == self._fit and not state["complete"]
            self.logs = dict(found.manifest.metrics)
            for callback in callbacks:
                go_on_from(callback, found.manifest.epoch)
        if self._stage.place.is_chief:
            _log.warning("%s", in_words(found, self._folder))

    def first_epoch(self, epochs: int) -> int | None:
        """The epoch to go on with, `epochs` where nothing is left; None to begin anew."""
        if self._loaded is None:
            return None
        manifest = self._loaded.manifest
        of_later_fit = manifest.state["fit"] > self._fit
        done = of_later_fit or manifest.state["stopped"]
        return max(epochs, manifest.epoch) if done else manifest.epoch

    def is_to_end(self, begin: int, epochs: int) -> bool:
        """Whether the training of the epochs from `begin` has an end before it still."""
        return epochs > begin or self._begun

    def begin(self, callbacks: list[Any]) -> None:
        """Callbacks have heard that training begins: what changes from here is their state."""
        self._capture.note_callbacks(callbacks)
        self._writes.prepare(self._capture.shared())

    def bring_back(self) -> int:
        """Write the rest back, once; the batch of the epoch that comes next."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return 0
        with pulse.during("checkpoint"):
            self._capture.write(loaded)
        return int(loaded.manifest.state["position"]["batch"])

    def after_batch(self, epoch: int, batch: int, *, done: int, is_last: bool) -> None:
        """Steps were trained, their hooks have run.

        Args:
            epoch: the epoch under way.
            batch: batches of it that are trained.
            done: of these, how many just now.
            is_last: whether the epoch ends here, which `after_epoch` then tells.

        Raises:
            SystemExit: this process is to go, and has saved.
        """
        self._step += done
        due, stops = self._schedule.is_due_after_step(self._step), False
        if self._rendezvous.is_due(self._step):
            timed, stops = self._meet()
            due = due or timed
        if (due or stops) and not is_last:
            self._save(Moment(step=self._step, epoch=epoch, batch=batch, since=done))
            if stops:
                self._stop()

    def after_epoch(self, epoch: int, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """An epoch has ended, its validation and hooks included.

        Raises:
            SystemExit: this process is to go, and has saved.
        """
        due = self._schedule.is_due_after_epoch(epoch, self._step)
        best = self._schedule.is_best(logs)
        timed, stops = self._meet()
        if due or best or timed or stops:
            moment = Moment(step=self._step, epoch=epoch + 1, is_stopped=is_stopped)
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
            moment = Moment(step=self._step, epoch=epoch, is_complete=True, is_stopped=is_stopped)
            self._save(moment, logs=logs)
            self._writes.finish()

    def _meet(self) -> tuple[bool, bool]:
        """Whether a checkpoint is due by the chief's clock, and whether some worker is to go."""
        return self._rendezvous.meet(
            self._step,
            chief_says=self._schedule.is_due_by_the_clock(),
            one_says=preemption.requested(),
        )

    def _save(self, moment: Moment, logs: Mapping[str, Any] | None = None) -> None:
        read, best = self._capture.read, self._schedule.best
        read_state = partial(read, moment, fit=self._fit, best=best, logs=logs or {})
        with pulse.during("checkpoint"):
            self._check()
            self._writes.write(read_state)
        self._schedule.saved(moment.step)

    def _stop(self) -> None:
        self._writes.finish()
        if self._stage.place.is_chief:
            _log.warning(
                "stopped at step %d, as a signal asked; the same command goes on from there",
                self._step,
            )
        raise SystemExit(RESUME_EXIT_CODE)


def checkpointing_of(
    stage: Stage,
    callbacks: list[Any],
    capture: Callable[..., Capture],
    *,
    check: Callable[[], None],
) -> Checkpointing | NoCheckpoints:
    """What keeps the checkpoints of a `fit` with these callbacks.

    Args:
        stage: where the call runs.
        callbacks: the callbacks of this worker.
        capture: makes what reads and writes the state; told whether to keep iterators.
        check: raises where training has gone wrong.

    Raises:
        DisagreementError: some workers have a `Checkpoint` and some have not.
    """
    callback = checkpoint_among(callbacks)
    has_none = callback is None
    missing, given = on_any_worker(stage.strategy, stage.place, has_none, not has_none)
    if missing and given:
        raise DisagreementError(
            "fit needs a Checkpoint on every worker or on none, since all write a share; found "
            f"{'none' if callback is None else 'one'} on this worker. Give it to every worker."
        )
    if callback is None:
        return NoCheckpoints()
    keeps_iterator = callback.options.data == "iterator"
    return Checkpointing(stage, callback, capture(keeps_iterator=keeps_iterator), check=check)


class NoCheckpoints:
    """Stands where `Checkpointing` would, and does nothing."""

    def __init__(self) -> None:
        """There were no epochs before this `fit`."""
        self.logs: dict[str, float] = {}

    def look(self, callbacks: list[Any]) -> None:
        """There is nothing to go on from."""

    def begin(self, callbacks: list[Any]) -> None:
        """No state is kept."""

    def first_epoch(self, epochs: int) -> int | None:
        """Training begins where it was asked to."""
        return None

    def is_to_end(self, begin: int, epochs: int) -> bool:
        """Whether there is an epoch to train."""
        return epochs > begin

    def bring_back(self) -> int:
        """An epoch begins at its first batch."""
        return 0

    def after_batch(self, epoch: int, batch: int, *, done: int, is_last: bool) -> None:
        """Nothing is due."""

    def after_epoch(self, epoch: int, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Nothing is due."""

    def end(self, epoch: int | None, logs: Mapping[str, Any], *, is_stopped: bool) -> None:
        """Nothing is due."""


def newest_for_all(stage: Stage, folder: Folder, patience: Patience) -> Loaded | None:
    """The newest whole checkpoint, None where there is none; all workers must ask together.

    The chief looks for it, so that a damaged one is passed over by all.

    Raises:
        NewerCheckpointError: the newest was written by a newer Phalanx.
        DamagedCheckpointError: another worker reads something else there than the chief.
    """
    found: Loaded | None = None
    if stage.place.is_chief:
        with suppress(NoCheckpointError):
            found = patience.try_to(f"read {folder}", lambda: newest(folder))
    step = chiefs_number(stage, -1 if found is None else found.manifest.step)
    if step < 0:
        return None
    return found or patience.try_to(f"read {folder}", lambda: read(folder, step))


def assert_of_a_fit(found: Loaded, folder: Folder) -> None:
    """Refuse what `phalanx.checkpoint.save` wrote, which has no place in any data."""
    if "position" not in found.manifest.state:
        raise OptionError(
            f"{folder} holds the checkpoint of step {found.manifest.step} by "
            "phalanx.checkpoint.save, which a fit cannot go on from. Give Checkpoint a directory "
            "of its own."
        )


def assert_wanted(found: Loaded, folder: Folder, *, resume: bool) -> None:
    """Refuse to go on where the user has asked not to."""
    if not resume:
        raise OptionError(
            f"Checkpoint was given resume=False, but {folder} holds the checkpoint of step "
            f"{found.manifest.step}. Remove it, give another directory, or let it resume."
        )


def assert_behind(found: Loaded, folder: Folder, step: int) -> None:
    """Refuse a second training beside one that has ended in this process."""
    if step < found.manifest.step:
        raise OptionError(
            f"Checkpoint was given {folder}, where a fit before this one has come to step "
            f"{found.manifest.step}; this one begins at step {step}. Give each training a "
            "directory of its own."
        )


def in_words(found: Loaded, folder: Folder) -> str:
    """What was found, for the user."""
    manifest = found.manifest
    if manifest.state["complete"]:
        return f"{folder} holds the end of this training, at step {manifest.step}"
    return f"going on from step {manifest.step} (epoch {manifest.epoch + 1}) of {folder}"
