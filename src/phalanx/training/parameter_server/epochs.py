"""The epochs of one `fit` on parameter servers, and their checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from phalanx.callbacks.checkpoint import find_checkpoint
from phalanx.keras_compat.model_access import steps_trained
from phalanx.keras_compat.ps_ema import take_averages
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.checkpoint_manager import CheckpointManager, NullCheckpointManager
from phalanx.training.context import CallContext
from phalanx.training.fit_loop import FitLoop, check_trained
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.parameter_server.metric_accumulator import MetricAccumulator
from phalanx.training.parameter_server.ps_instrumentation import PSInstrumentation
from phalanx.training.parameter_server.ps_train_state import PassProgress, ServerCapture
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_data import WorkerData
from phalanx.training.parameter_server.worker_step import StepResult, WorkerStep
from phalanx.training.train_state import TrainProgress
from phalanx.worker import preemption


class PSFitLoop(FitLoop):
    """The epochs of a `fit` on parameter servers, in the chief."""

    _reporter: PSInstrumentation

    def __init__(
        self,
        stage: CallContext,
        step: WorkerStep,
        data: WorkerData,
        scheduler: StepScheduler,
        callbacks: Any,
        steps_per_epoch: int | None,
        *,
        shows_progress: bool,
    ) -> None:
        self._step = step
        self._scheduler = scheduler
        self._steps_per_epoch = steps_per_epoch
        self._every = int(stage.model.steps_per_execution or 1)
        self._cadence = MetricsSchedule(
            callbacks.callbacks, "train", shows_progress=shows_progress, clock=time.monotonic
        )
        self._logs_gradients = _logs_gradients(callbacks.callbacks)
        self._progress = PassProgress()
        self._capture = ServerCapture(stage.model, data, scheduler, self._cadence, self._progress)
        checkpoints = checkpoints_of(stage, callbacks.callbacks, self._capture)
        if isinstance(checkpoints, ServerCheckpointing):
            scheduler.room = self._room
            scheduler.on_quiesce = self._save_now
        self._trained = 0
        self._group: list[StepResult] = []
        self._logs: dict[str, float] = {}
        reporter = PSInstrumentation(stage.model, callbacks, scheduler.workers)
        super().__init__(stage.model, callbacks, reporter, checkpoints)

    def _open_data(self, begin: int) -> int | None:
        self._trained = steps_trained(self._model)
        steps = self._steps_per_epoch or self._scheduler.steps_in_pass
        self._scheduler.start(begin * (steps or 0))
        return steps

    def _train_epoch(self, done: int) -> dict[str, Any]:
        totals = self._train(done)
        totals.store()
        logs = {**totals.logs(), "staleness": totals.staleness}
        if self._logs_gradients:
            logs.update(totals.gradient_logs())
        # A step that a lost worker had started was done twice, and counts once.
        self._model.optimizer.iterations.assign(self._trained)
        return logs

    def _finish(self, *, has_work_left: bool) -> None:
        if has_work_left:
            take_averages(self._model.optimizer, self._model.trainable_weights)

    def _train(self, done: int) -> MetricAccumulator:
        """One epoch's steps, from its batch `done` on.

        Raises:
            DataError: there was none.
        """
        self._progress.totals = totals = MetricAccumulator(self._model, self._step)
        self._capture.write_totals(totals)
        self._cadence.start_epoch(done)
        self._reporter.begin_steps()
        self._logs = {}
        for result in self._scheduler.epoch(self._steps_per_epoch, done=done):
            if not self._group:
                phase_tracker.enter("callbacks")
                self._callbacks.on_train_batch_begin(totals.steps)
                phase_tracker.enter("compute")
            self._group.append(result)
            totals.add(result)
            if len(self._group) == self._every:
                self._end_group(totals)
        self._end_group(totals)
        self._reporter.end_steps()
        check_trained(totals.steps > 0)
        return totals

    def _end_group(self, totals: MetricAccumulator) -> None:
        """As many steps as hooks are run for at once are done, or all that there are."""
        group, self._group = self._group, []
        if not group:
            return
        self._trained += len(group)
        self._reporter.trained(self._trained)
        if self._cadence.is_due(totals.steps):
            self._logs = totals.logs()
            self._cadence.agree(self._cadence.propose(totals.steps))
            self._reporter.metrics(self._logs, totals.steps - 1)
        phase_tracker.enter("callbacks")
        self._callbacks.on_train_batch_end(totals.steps - 1, self._logs)
        phase_tracker.enter("compute")
        self._reporter.on_results(group)
        if isinstance(self._checkpoints, ServerCheckpointing):
            self._checkpoints.trained(len(group))
        if self._model.stop_training:
            self._scheduler.stop()

    def _room(self) -> int | None:
        """How many steps may be given before a checkpoint is due."""
        assert isinstance(self._checkpoints, ServerCheckpointing)
        return self._checkpoints.room(self._trained + len(self._group))

    def _save_now(self) -> None:
        """No step is scheduled: handle all results, and save."""
        totals = self._progress.totals
        assert isinstance(self._checkpoints, ServerCheckpointing)
        assert totals is not None
        self._end_group(totals)
        if not self._model.stop_training:
            self._checkpoints.save_now(self._epoch, totals.steps)


class ServerCheckpointing(CheckpointManager):
    """Saves and restores one `fit`, from the chief, which writes all.

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


def _logs_gradients(callbacks: Iterable[Any]) -> bool:
    """Whether the epoch's logs must have the norms of the workers' local gradients."""
    return any(_own_name(callback) == "GradientLogger" for callback in callbacks)


def _own_name(callback: Any) -> str | None:
    """The class name of a callback of Phalanx, or of the one it derives from; None for others."""
    kinds = (k for k in type(callback).__mro__ if k.__module__.startswith("phalanx.callbacks."))
    return next((kind.__name__ for kind in kinds), None)
