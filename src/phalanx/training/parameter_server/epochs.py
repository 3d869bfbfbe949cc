"""The epochs of one `fit` on servers, as the chief sees them: train, validate, tell, save."""

from __future__ import annotations

import time
from typing import Any

import keras

from phalanx.callbacks.checkpoint import find_checkpoint
from phalanx.keras_compat.model_access import is_validation_epoch, steps_trained
from phalanx.keras_compat.ps_ema import take_averages
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.checkpoint_manager import CheckpointManager, NullCheckpointManager
from phalanx.training.context import CallContext
from phalanx.training.fit_loop import check_trained, start_training
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.parameter_server.bind_callbacks import logs_gradients
from phalanx.training.parameter_server.evaluate import ServerEvaluation
from phalanx.training.parameter_server.metric_accumulator import MetricAccumulator
from phalanx.training.parameter_server.ps_instrumentation import PSThroughput
from phalanx.training.parameter_server.ps_train_state import PassProgress, ServerCapture
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_data import WorkerData
from phalanx.training.parameter_server.worker_step import StepResult, WorkerStep
from phalanx.training.train_state import TrainProgress
from phalanx.worker import preemption


class ServerEpochs:
    """The epochs of one call of `fit`."""

    def __init__(
        self,
        stage: CallContext,
        step: WorkerStep,
        data: WorkerData,
        dispatch: StepScheduler,
        callbacks: Any,
        steps_per_epoch: int | None,
        *,
        shows_progress: bool,
    ) -> None:
        self._model = stage.model
        self._step = step
        self._dispatch = dispatch
        self._callbacks = callbacks
        self._asked = steps_per_epoch
        self._every = int(stage.model.steps_per_execution or 1)
        self._cadence = MetricsSchedule(
            callbacks.callbacks, "train", shows_progress=shows_progress, clock=time.monotonic
        )
        self._logs_gradients = logs_gradients(callbacks.callbacks)
        self._watch = PSThroughput(stage.model, callbacks, dispatch.workers)
        self._tally = PassProgress()
        self._capture = ServerCapture(stage.model, data, dispatch, self._cadence, self._tally)
        self._checkpoints = checkpoints_of(stage, callbacks.callbacks, self._capture)
        if isinstance(self._checkpoints, ServerCheckpointing):
            dispatch.room = self._room
            dispatch.on_quiesce = self._stand_still
        self._trained = 0
        self._epoch = 0
        self._group: list[StepResult] = []
        self._logs: dict[str, float] = {}
        self.evaluation: ServerEvaluation | None = None
        self.validation_freq: Any = 1

    def run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        """Train from `initial_epoch` up to `epochs`."""
        model, callbacks, checkpoints = self._model, self._callbacks, self._checkpoints
        begin = start_training(
            model, callbacks, checkpoints, initial_epoch=initial_epoch, epochs=epochs
        )
        self._trained = steps_trained(model)
        steps = self._asked or self._dispatch.steps_in_pass
        self._dispatch.start(begin * (steps or 0))
        self._watch.begin(epochs=epochs, begin=begin, step=self._trained, steps=steps)
        logs = checkpoints.logs
        if begin >= epochs:
            checkpoints.restore_state()
        for epoch in range(begin, epochs):
            self._epoch = epoch
            logs = self._one_epoch()
            checkpoints.after_epoch(epoch, logs, is_stopped=model.stop_training)
            if model.stop_training:
                self._watch.stopped(step=self._trained, epoch=epoch)
                break
        has_work_left = checkpoints.has_work_left(begin, epochs)
        if has_work_left:
            take_averages(model.optimizer, model.trainable_weights)
        with phase_tracker.during("callbacks"):
            callbacks.on_train_end(logs)
        self._watch.end(step=self._trained, epoch=self._epoch)
        following = max(begin, self._epoch + 1) if has_work_left else None
        checkpoints.end(following, logs, is_stopped=model.stop_training)
        return model.history

    def _one_epoch(self) -> dict[str, float]:
        """Train the epoch, from where a checkpoint was taken if it was in it, and validate."""
        model, epoch = self._model, self._epoch
        model.reset_metrics()
        self._watch.begin_epoch(epoch)
        with phase_tracker.during("callbacks"):
            self._callbacks.on_epoch_begin(epoch)
        totals = self._train(self._checkpoints.restore_state())
        totals.store()
        logs = {**totals.logs(), "staleness": totals.staleness}
        if self._logs_gradients:
            logs.update(totals.gradient_logs())
        # A step that a lost worker had begun was done twice, and counts once.
        model.optimizer.iterations.assign(self._trained)
        if self.evaluation and is_validation_epoch(model, epoch, self.validation_freq):
            validated = self.evaluation.run(self._callbacks)
            logs.update({f"val_{name}": value for name, value in validated.items()})
        with phase_tracker.during("callbacks"):
            self._callbacks.on_epoch_end(epoch, logs)
        self._watch.end_epoch(logs, step=self._trained, epoch=epoch)
        return logs

    def _train(self, done: int) -> MetricAccumulator:
        """One epoch's steps, from its batch `done` on.

        Raises:
            DataError: there was none.
        """
        self._tally.totals = totals = MetricAccumulator(self._model, self._step)
        self._capture.write_totals(totals)
        self._cadence.start_epoch(done)
        self._watch.begin_steps()
        self._logs = {}
        for result in self._dispatch.epoch(self._asked, done=done):
            if not self._group:
                phase_tracker.enter("callbacks")
                self._callbacks.on_train_batch_begin(totals.steps)
                phase_tracker.enter("compute")
            self._group.append(result)
            totals.add(result)
            if len(self._group) == self._every:
                self._end_group(totals)
        self._end_group(totals)
        self._watch.end_steps(self._trained)
        check_trained(totals.steps > 0)
        return totals

    def _end_group(self, totals: MetricAccumulator) -> None:
        """As many steps as hooks are run for at once are done, or all that there are."""
        group, self._group = self._group, []
        if not group:
            return
        self._trained += len(group)
        phase_tracker.at(step=self._trained)
        if self._cadence.is_due(totals.steps):
            self._logs = totals.logs()
            self._cadence.agree(self._cadence.propose(totals.steps))
            where = {"step": self._trained, "epoch": self._epoch, "batch": totals.steps - 1}
            self._watch.metrics(self._logs, **where)
        phase_tracker.enter("callbacks")
        self._callbacks.on_train_batch_end(totals.steps - 1, self._logs)
        phase_tracker.enter("compute")
        self._watch.on_results(group, self._trained)
        if isinstance(self._checkpoints, ServerCheckpointing):
            self._checkpoints.trained(len(group))
        if self._model.stop_training:
            self._dispatch.stop()

    def _room(self) -> int | None:
        """How many steps may be given before a checkpoint is due."""
        assert isinstance(self._checkpoints, ServerCheckpointing)
        return self._checkpoints.room(self._trained + len(self._group))

    def _stand_still(self) -> None:
        """No step is under way: what was told is done with, and all is saved."""
        totals = self._tally.totals
        assert isinstance(self._checkpoints, ServerCheckpointing)
        assert totals is not None
        self._end_group(totals)
        if not self._model.stop_training:
            self._checkpoints.save_now(self._epoch, totals.steps)


class ServerCheckpointing(CheckpointManager):
    """Saves and brings back one `fit`, from the chief, which writes all.

    Workers have steps given ahead, so the chief says beforehand how many more there may be.
    """

    def room(self, step: int) -> int | None:
        """How many steps may be given before all are to make no progress, `step` of them done.

        None for any number; 0 where a checkpoint is due, or a signal asks to stop.
        """
        schedule = self._schedule
        due = schedule.is_due_by_the_clock() or schedule.is_due_after_step(step)
        if due or preemption.is_requested():
            return 0
        every = self._options.every
        return int(every.every) - step % int(every.every) if every.unit == "steps" else None

    def trained(self, steps: int) -> None:
        """So many more steps are done, and their hooks have run."""
        self._step += steps

    def save_now(self, epoch: int, batch: int) -> None:
        """Save in the middle of an epoch; no step is under way.

        Raises:
            SystemExit: this process is to go, and has saved.
        """
        self._save(TrainProgress(step=self._step, epoch=epoch, batch=batch))
        if preemption.is_requested():
            self._stop()


def checkpoints_of(
    stage: CallContext, callbacks: list[Any], capture: ServerCapture
) -> ServerCheckpointing | NullCheckpointManager:
    """What keeps the checkpoints of a `fit` with these callbacks."""
    callback = find_checkpoint(callbacks)
    if callback is None:
        return NullCheckpointManager()
    return ServerCheckpointing(stage, callback, capture, check=lambda: None)
