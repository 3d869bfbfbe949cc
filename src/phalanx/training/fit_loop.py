"""The epochs of one `fit`: train, validate, call the callbacks, save."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import keras

from phalanx.callbacks.replica_check import find_replica_check
from phalanx.data.batches import BatchSource
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.errors import DataError
from phalanx.keras_compat.model_access import (
    first_epoch,
    is_validation_epoch,
    steps_trained,
)
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.callback_sync import CallbackSync
from phalanx.training.checkpoint_manager import (
    CheckpointManager,
    NullCheckpointManager,
    checkpointing_of,
)
from phalanx.training.context import CallContext, gather_log_requirements, open_source
from phalanx.training.epoch_loop import BatchLoop
from phalanx.training.evaluate import Evaluation, validation_of
from phalanx.training.instrumentation import FitInstrumentation, FitReporter
from phalanx.training.local_steps import local_steps_of
from phalanx.training.metrics import reader_of, share_out
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.replica_consistency import ReplicaChecks
from phalanx.training.replica_local_state import LocalState
from phalanx.training.step_function import Outputs, nothing_trained
from phalanx.training.step_runner import StepRunner
from phalanx.training.train_state import TrainState


class FitLoop(ABC):
    """The epochs of one call of `fit`: train, validate, call the callbacks, save.

    Attributes:
        evaluation: validates the model; None for no validation.
        validation_freq: after which epochs, as Keras takes it.
    """

    def __init__(
        self,
        model: Any,
        callbacks: Any,
        reporter: FitReporter,
        checkpoints: CheckpointManager | NullCheckpointManager,
    ) -> None:
        self._model = model
        self._callbacks = callbacks
        self._reporter = reporter
        self._checkpoints = checkpoints
        self._first_epoch = self._epoch = 0
        self.evaluation: Any = None
        self.validation_freq: Any = 1

    def run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        """Train from `initial_epoch` up to `epochs`."""
        with phase_tracker.during("compute"):
            return self._run(initial_epoch, epochs)

    def _run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        model, checkpoints, reporter = self._model, self._checkpoints, self._reporter
        begin = self._first_epoch = start_training(
            model, self._callbacks, checkpoints, initial_epoch=initial_epoch, epochs=epochs
        )
        steps = self._open_data(begin)
        reporter.begin(epochs=epochs, initial_epoch=begin, steps=steps)
        logs, done = checkpoints.logs, checkpoints.batches_done
        if not done or begin >= epochs:
            checkpoints.restore_state()
        for epoch in range(begin, epochs):
            self._before_reset()
            model.reset_metrics()
            reporter.begin_epoch(epoch)
            checkpoints.restore_state()  # within an epoch, whose beginning the state has behind it
            self._epoch = epoch
            logs, done = self._train_epoch(done), 0
            if self.evaluation and is_validation_epoch(model, epoch, self.validation_freq):
                validated = self.evaluation.run(self._callbacks)
                logs.update({f"val_{name}": value for name, value in validated.items()})
            reporter.end_epoch(epoch, logs)
            self._sync_stop()
            checkpoints.after_epoch(epoch, logs, is_stopped=model.stop_training)
            if model.stop_training:
                reporter.stopped(epoch)
                break
        has_work_left = checkpoints.has_work_left(begin, epochs)
        self._finish(has_work_left=has_work_left)
        reporter.end(logs)
        following = max(begin, self._epoch + 1) if has_work_left else None
        checkpoints.end(following, logs, is_stopped=model.stop_training)
        return model.history

    @abstractmethod
    def _open_data(self, begin: int) -> int | None:
        """Open the data at epoch `begin`; returns the steps of an epoch, None if unknown."""

    @abstractmethod
    def _train_epoch(self, done: int) -> dict[str, Any]:
        """Train this epoch from its batch `done` on; returns its logs."""

    def _before_reset(self) -> None:  # noqa: B027 (nothing to do where one process counts)
        """Prepare metrics that hold what all workers have counted, and are never reset."""

    def _sync_stop(self) -> None:  # noqa: B027 (nothing to do where one process decides)
        """Let all workers stop if one does."""

    @abstractmethod
    def _finish(self, *, has_work_left: bool) -> None:
        """After the last epoch: average the weights, if the optimizer does."""


class SyncFitLoop(FitLoop):
    """The epochs of a `fit` whose workers train in step."""

    _reporter: FitInstrumentation

    def __init__(
        self,
        stage: CallContext,
        function: Any,
        stream: Any,
        callbacks: Any,
        *,
        shows_progress: bool,
    ) -> None:
        local = self._local = local_steps_of(stage, function)
        watch = FitInstrumentation(stage, function, stream, callbacks, local)
        cadence = self._cadence = MetricsSchedule(
            callbacks.callbacks,
            "train",
            shows_progress=shows_progress,
            clock=time.monotonic,
            everyones=partial(gather_log_requirements, stage),
        )
        executor = self._executor = StepRunner(stage.model, function, callbacks.callbacks, local)
        self._stage = stage
        self._stream = stream
        self._done = 0
        self._reader = reader_of(stage.model, function)
        self._local_state = LocalState.of(stage.model, function)
        if executor.kept is not None:
            executor.kept.stream = stream
        self._batches = BatchLoop(
            stream=stream,
            execute=partial(self._execute, watch),
            is_due=partial(watch.is_due, cadence),
            read=partial(watch.read, self._reader, cadence),
            begin=watch.begin_batch,
            end=watch.end_batch,
            is_stopped=lambda: bool(stage.model.stop_training),
            after=self._after_batch,
        )
        requested = find_replica_check(callbacks.callbacks)
        self._replicas = ReplicaChecks(
            stage, function, requested, own=() if local is None else local.own_variables().values()
        )
        checkpoints = checkpointing_of(
            stage,
            callbacks.callbacks,
            partial(TrainState, stage.model, function, stream, cadence, local),
            check=executor.check,
        )
        stream.limit = partial(watch.steps_until_event, executor, cadence, checkpoints)
        for callback in callbacks.callbacks if local is not None else ():
            if isinstance(callback, CallbackSync):
                callback.local_steps = local
        super().__init__(stage.model, callbacks, watch, checkpoints)

    def validate_on(
        self, data: Any, *, batch_size: int | None, steps: int | None, freq: Any
    ) -> None:
        """Validate on `data` every `freq` epochs, by the model's `evaluate` if it has its own."""
        self.evaluation = validation_of(
            self._stage.model, data, batch_size=batch_size, steps=steps, open_data=self._evaluation
        )
        self.validation_freq = freq

    def _evaluation(self, x: Any, y: Any, **options: Any) -> Evaluation:
        source = open_source(self._stage, "validation of fit", 0, x, y, **options)
        return Evaluation(self._stage, source, options["steps"])

    def validate_as(self, source: BatchSource, *, steps: int | None, freq: Any) -> None:
        """Validate on the batches of `source` every `freq` epochs."""
        self.evaluation = Evaluation(self._stage, source, steps)
        self.validation_freq = freq

    def run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        """See `FitLoop`."""
        try:
            return super().run(initial_epoch, epochs)
        finally:
            # The loop names a method of ours, and the stream asks what knows the stream:
            # without this, iterators would live until the collector comes, which then
            # waits for them in the middle of a later step.
            del self._batches
            self._stream.limit = lambda: None
            if self._executor.kept is not None:
                self._executor.kept.stream = None

    def _open_data(self, begin: int) -> int | None:
        self._stream.start(begin)
        self._executor.start(steps_trained(self._model))
        steps: int | None = self._stream.steps
        return steps

    def _train_epoch(self, done: int) -> dict[str, Any]:
        if self._epoch == self._first_epoch:
            self._replicas.begin(self._executor.trained, is_resumed=done > 0)
        if self._local is not None:
            self._local.begin(self._executor.trained)
        self._done = done
        self._cadence.start_epoch(done)
        outputs = self._batches.run()
        if not outputs and done:  # the checkpoint was taken where the data ended
            outputs = nothing_trained(self._stage.topology.local)
        check_trained(bool(outputs))
        if self._local is not None:
            self._local.sync()
        self._executor.check()
        logs = {**self._reporter.read_last(self._reader, outputs), **self._executor.logs()}
        if self._local is None:
            self._local_state.average()
        return logs

    def _before_reset(self) -> None:
        share_out(self._model, self._stage.topology)

    def _execute(self, watch: FitInstrumentation, iterator: Any, steps: int) -> tuple[int, Outputs]:
        share_out(self._model, self._stage.topology)  # a hook may have evaluated
        done, outputs = watch.execute(self._executor, iterator, steps)
        self._done += done
        if (local := self._local) is not None:
            local.after(done, is_last=self._done == self._stream.steps)
            if local.found_nonfinite:
                self._executor.check()
        return done, outputs

    def _after_batch(self, batch: int, done: int) -> None:
        is_synced = self._local is None or self._local.is_synced
        if is_synced:
            self._replicas.after(self._executor.trained)
        is_last = batch == self._stream.steps or self._model.stop_training
        self._checkpoints.after_batch(
            self._epoch, batch, done=done, can_save=is_synced and not is_last
        )

    def _sync_stop(self) -> None:
        # A callback that only some workers have may stop all, and must not stop some.
        model, stage = self._model, self._stage
        [model.stop_training] = on_any_worker(stage.strategy, stage.topology, model.stop_training)

    def _finish(self, *, has_work_left: bool) -> None:
        if self._local is not None and has_work_left:
            self._local.end()
        self._replicas.end(self._executor.trained)
        if isinstance(self._model.optimizer, keras.optimizers.Optimizer) and has_work_left:
            self._model.optimizer.finalize_variable_values(self._model.trainable_weights)


def start_training(
    model: Any,
    callbacks: Any,
    checkpoints: CheckpointManager | NullCheckpointManager,
    *,
    initial_epoch: int,
    epochs: int,
) -> int:
    """Find the checkpoint to resume from, and call the callbacks' `on_train_begin`.

    Args:
        model: the model.
        callbacks: Keras's list of them.
        checkpoints: those of this `fit`.
        initial_epoch: where to begin if there is nothing to resume from.
        epochs: where to end.

    Returns:
        The epoch to begin with.
    """
    checkpoints.restore_variables(callbacks.callbacks)
    model.stop_training = False
    with phase_tracker.during("callbacks"):
        callbacks.on_train_begin()
    checkpoints.begin(callbacks.callbacks)
    resumed = checkpoints.first_epoch(epochs)
    return first_epoch(model, initial_epoch) if resumed is None else resumed


def check_trained(any_batch: bool) -> None:
    """Refuse an epoch without a batch.

    Raises:
        DataError: there was none.
    """
    if not any_batch:
        raise DataError(
            "Asked to train an epoch, but the data gave no batch. Is it exhausted, or "
            "smaller than one batch with drop_remainder?"
        )
