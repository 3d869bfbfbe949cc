"""A `fit` and its `Checkpoint`: when to save, what to do then, and how to come back."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from phalanx.callbacks.checkpoint import Checkpoint, checkpoint_among
from phalanx.checkpoint.reading import Loaded
from phalanx.errors import DisagreementError
from phalanx.launch.preemption import RESUME_EXIT_CODE
from phalanx.seam.csv_log import go_on_from
from phalanx.seam.models import steps_trained
from phalanx.training.capture import Capture, Moment
from phalanx.training.checkpoint_writes import CheckpointWrites
from phalanx.training.exchange import on_any_worker
from phalanx.training.no_checkpoints import NoCheckpoints
from phalanx.training.prepare import Stage
from phalanx.training.rendezvous import Rendezvous
from phalanx.training.resume import (
    assert_behind,
    assert_of_a_fit,
    assert_wanted,
    in_words,
    newest_for_all,
)
from phalanx.training.save_schedule import SaveSchedule
from phalanx.worker import preemption
from phalanx.worker.pulse import pulse

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
