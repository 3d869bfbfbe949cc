"""The epochs of one `fit`: train, validate, tell the callbacks, save."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import keras

from phalanx.callbacks.replica_check import find_replica_check
from phalanx.data.batches import BatchSource
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.errors import DataError
from phalanx.keras_compat.model_access import first_epoch, is_validation_epoch, steps_trained
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.checkpoint_manager import (
    CheckpointManager,
    NullCheckpointManager,
    checkpointing_of,
)
from phalanx.training.context import CallContext, gather_log_requirements, open_source
from phalanx.training.epoch_loop import BatchLoop
from phalanx.training.evaluate import Evaluation
from phalanx.training.instrumentation import FitInstrumentation
from phalanx.training.metrics import reader_of
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.replica_consistency import ReplicaChecks
from phalanx.training.replica_local_state import LocalState
from phalanx.training.step_function import nothing_trained
from phalanx.training.step_runner import StepRunner
from phalanx.training.train_state import TrainState


class Epochs:
    """The epochs of one call of `fit`."""

    def __init__(
        self,
        stage: CallContext,
        function: Any,
        stream: Any,
        callbacks: Any,
        *,
        shows_progress: bool,
    ) -> None:
        self._stage = stage
        self._model = stage.model
        self._function = function
        self._stream = stream
        self._callbacks = callbacks
        self._reader = reader_of(stage.model, function)
        self._local_state = LocalState.of(stage.model, function)
        self._watch = FitInstrumentation(stage, function, stream, callbacks)
        cadence = self._cadence = MetricsSchedule(
            callbacks.callbacks,
            "train",
            shows_progress=shows_progress,
            clock=time.monotonic,
            everyones=partial(gather_log_requirements, stage),
        )
        self._executor = StepRunner(stage.model, function, callbacks.callbacks)
        stream.limit = partial(self._watch.steps_until_sample, self._executor)
        if self._executor.kept is not None:
            self._executor.kept.stream = stream
        self._batches = BatchLoop(
            stream=stream,
            execute=partial(self._watch.execute, self._executor),
            is_due=partial(self._watch.is_due, cadence),
            read=partial(self._watch.read, self._reader, cadence),
            begin=self._watch.begin_batch,
            end=self._watch.end_batch,
            is_stopped=lambda: bool(stage.model.stop_training),
            after=self._after_batch,
        )
        asked = find_replica_check(callbacks.callbacks)
        self._replicas = ReplicaChecks(stage, function, asked)
        self._checkpoints = checkpointing_of(
            stage,
            callbacks.callbacks,
            partial(TrainState, stage.model, function, stream, cadence),
            check=self._executor.check,
        )
        self._epoch = 0
        self._evaluation: Evaluation | None = None
        self._validation_freq: Any = 1

    def validate_on(
        self, data: Any, *, batch_size: int | None, steps: int | None, freq: Any
    ) -> None:
        """Validate on `data` every `freq` epochs."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        options = {"sample_weight": weight, "batch_size": batch_size, "steps": steps}
        source = open_source(self._stage, "validation of fit", 0, x, y, **options)
        self.validate_as(source, steps=steps, freq=freq)

    def validate_as(self, source: BatchSource, *, steps: int | None, freq: Any) -> None:
        """Validate on the batches of `source` every `freq` epochs."""
        self._evaluation = Evaluation(self._stage, source, steps)
        self._validation_freq = freq

    def run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        """Train from `initial_epoch` up to `epochs`."""
        with phase_tracker.during("compute"):
            try:
                return self._run(initial_epoch, epochs)
            finally:
                # The loop names a method of ours, and the stream asks what knows the stream:
                # without this, iterators would live until the collector comes, which then
                # waits for them in the middle of a later step.
                del self._batches
                self._stream.limit = lambda: None
                if self._executor.kept is not None:
                    self._executor.kept.stream = None

    def _run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        model, callbacks, watch = self._model, self._callbacks, self._watch
        stage, checkpoints = self._stage, self._checkpoints
        begin = start_training(
            model, callbacks, checkpoints, initial_epoch=initial_epoch, epochs=epochs
        )
        self._stream.start(begin)
        self._executor.start(steps_trained(model))
        watch.begin(epochs=epochs, initial_epoch=begin)
        logs = checkpoints.logs
        if begin >= epochs:
            checkpoints.restore_state()
        for epoch in range(begin, epochs):
            model.reset_metrics()
            watch.begin_epoch(epoch)
            self._epoch = epoch
            done = checkpoints.restore_state()
            if epoch == begin:
                self._replicas.begin(self._executor.trained, is_resumed=done > 0)
            logs = self._train_epoch(done)
            self._local_state.average()
            if self._evaluation and is_validation_epoch(model, epoch, self._validation_freq):
                validated = self._evaluation.run(callbacks)
                logs.update({f"val_{name}": value for name, value in validated.items()})
            watch.end_epoch(epoch, logs)
            # A callback that only some workers have may stop all, and must not stop some.
            [model.stop_training] = on_any_worker(stage.strategy, stage.place, model.stop_training)
            checkpoints.after_epoch(epoch, logs, is_stopped=model.stop_training)
            if model.stop_training:
                watch.stopped(epoch)
                break
        self._replicas.end(self._executor.trained)
        has_work_left = checkpoints.has_work_left(begin, epochs)
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and has_work_left:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        watch.end(logs)
        following = max(begin, self._epoch + 1) if has_work_left else None
        checkpoints.end(following, logs, is_stopped=model.stop_training)
        return model.history

    def _after_batch(self, batch: int, done: int) -> None:
        self._replicas.after(self._executor.trained)
        is_last = batch == self._stream.steps
        self._checkpoints.after_batch(self._epoch, batch, done=done, is_last=is_last)

    def _train_epoch(self, done: int) -> dict[str, float]:
        """Train the epoch from its batch `done` on."""
        self._cadence.start_epoch(done)
        outputs = self._batches.run()
        if not outputs and done:  # the checkpoint was taken where the data ended
            outputs = nothing_trained(self._stage.place.local)
        check_trained(bool(outputs))
        self._executor.check()
        return {**self._watch.read_last(self._reader, outputs), **self._executor.logs()}


def start_training(
    model: Any,
    callbacks: Any,
    checkpoints: CheckpointManager | NullCheckpointManager,
    *,
    initial_epoch: int,
    epochs: int,
) -> int:
    """Find what to resume from, and tell the callbacks that training begins.

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
