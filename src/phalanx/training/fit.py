"""`fit`: Keras's loop, giving the answer that one device would have given."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

from phalanx.callbacks.progress import Progress
from phalanx.errors import DataError, TrainingError
from phalanx.seam.adapters import split_validation
from phalanx.seam.models import (
    assert_compiled,
    first_epoch,
    has_own_function,
    is_validation_epoch,
)
from phalanx.training.cadence import ReadingCadence
from phalanx.training.evaluate import Evaluation
from phalanx.training.executor import Executor
from phalanx.training.local_state import LocalState
from phalanx.training.metrics import reader_of
from phalanx.training.prepare import (
    Stage,
    callback_list,
    make_function,
    make_stream,
    on_any_worker,
    on_stage,
    open_source,
)
from phalanx.training.step import Outputs


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
) -> keras.callbacks.History:
    """What `keras.Model.fit` does, right under every synchronous strategy.

    Arguments are Keras's. Every worker is given the same global data and arguments;
    `batch_size` is the global batch, of which each replica takes its share. Weights,
    history and metrics come out as on one device, to float32 rounding, and equal on
    every worker.

    Args:
        model: a compiled Keras model, made inside or outside the strategy's scope.
        x: arrays, a `tf.data.Dataset`, a distributed dataset, a generator, a PyDataset.
        y: targets, where `x` does not bring them.
        batch_size: samples of a global batch, for arrays; 32 where None.
        epochs: the epoch to end before.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        callbacks: Keras callbacks, run on every worker with global logs.
        validation_split: share of the arrays, from their end, to validate on.
        validation_data: data to validate on.
        shuffle: True, False or "batch"; arrays are shuffled alike on every worker.
        class_weight: weight by class id.
        sample_weight: one weight a sample, for arrays.
        initial_epoch: the epoch to begin with.
        steps_per_epoch: global batches an epoch; one pass where None.
        validation_steps: batches of a validation; all where None.
        validation_batch_size: global batch of validation arrays.
        validation_freq: every how many epochs, or after which, to validate.

    Returns:
        Keras's History, the same on every worker.

    Raises:
        DisagreementError: workers were given different data, models or arguments.
        DataError: an epoch found no batch.
        TrainingError: the model overrides `make_train_function`.
    """
    assert_compiled(model, "fit")
    if has_own_function(model, "train"):
        raise TrainingError(
            f"{type(model).__name__} overrides make_train_function, which would leave out what "
            "makes several replicas right. Override train_step instead."
        )
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split_validation(
            (x, y, sample_weight), validation_split
        )
    epochs = min(epochs, keras.config.max_epochs() or epochs)
    if most_steps := keras.config.max_steps_per_epoch():
        steps_per_epoch = min(steps_per_epoch or most_steps, most_steps)
    with on_stage(model) as stage:
        source = open_source(
            stage,
            "fit",
            int(np.random.randint(2**31 - 1)),
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
        )
        function = make_function(stage, "train", source)
        stream = make_stream(stage, source, steps_per_epoch)
        listed = callback_list(
            stage,
            callbacks,
            verbose=verbose,
            epochs=epochs,
            steps=stream.steps,
            display=Progress,
            add_history=True,
        )
        loop = _Loop(stage, function, stream, listed, shows_progress=bool(verbose))
        if validation_data is not None:
            loop.validate_on(
                validation_data,
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
                freq=validation_freq,
            )
        return loop.run(initial_epoch, epochs)


class _Loop:
    """The epochs of one call of `fit`."""

    def __init__(
        self, stage: Stage, function: Any, stream: Any, callbacks: Any, *, shows_progress: bool
    ) -> None:
        self._stage = stage
        self._model = stage.model
        self._function = function
        self._stream = stream
        self._callbacks = callbacks
        self._reader = reader_of(stage.model, function)
        self._local_state = LocalState.of(stage.model, function)
        others = [c for c in callbacks.callbacks if not isinstance(c, Progress)]
        self._cadence = ReadingCadence(
            others,
            "train",
            shows_progress=shows_progress,
            clock=time.monotonic,
            on_any_worker=lambda *needs: on_any_worker(stage, needs),
        )
        self._executor = Executor(stage.model, function, callbacks.callbacks)
        stream.limit = self._executor.steps_until_look
        self._evaluation: Evaluation | None = None
        self._validation_freq: Any = 1

    def validate_on(
        self, data: Any, *, batch_size: int | None, steps: int | None, freq: Any
    ) -> None:
        """Validate on `data` every `freq` epochs."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        options = {"sample_weight": weight, "batch_size": batch_size, "steps": steps}
        source = open_source(self._stage, "validation of fit", 0, x, y, **options)
        self._evaluation = Evaluation(self._stage, source, steps)
        self._validation_freq = freq

    def run(self, initial_epoch: int, epochs: int) -> keras.callbacks.History:
        """Train from `initial_epoch` up to `epochs`."""
        model, callbacks = self._model, self._callbacks
        model.stop_training = False
        callbacks.on_train_begin()
        begin = first_epoch(model, initial_epoch)
        self._stream.start(begin)
        self._executor.start(begin * (self._stream.steps or 0))
        logs: dict[str, float] = {}
        for epoch in range(begin, epochs):
            model.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch()
            self._local_state.average()
            if self._evaluation and is_validation_epoch(model, epoch, self._validation_freq):
                validated = self._evaluation.run(callbacks)
                logs.update({f"val_{name}": value for name, value in validated.items()})
            callbacks.on_epoch_end(epoch, logs)
            # A callback that only some workers have may stop all, and must not stop some.
            model.stop_training, _ = on_any_worker(self._stage, (model.stop_training, False))
            if model.stop_training:
                break
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and epochs > begin:
            model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs)
        return model.history

    def _train_epoch(self) -> dict[str, float]:
        callbacks, cadence = self._callbacks, self._cadence
        cadence.start_epoch()
        outputs: Outputs = ()
        logs: dict[str, float] = {}
        for step, size, iterator in self._stream.epoch():
            callbacks.on_train_batch_begin(step)
            try:
                done, outputs = self._executor.run(iterator, size)
            except StopIteration:
                self._stream.ran_out(steps_done=0)
                continue
            if done < size:
                self._stream.ran_out(steps_done=done)
            if cadence.is_due(step + done):
                logs, upcoming = self._reader.read(outputs, cadence.propose(step + done))
                cadence.agree(upcoming)
            callbacks.on_train_batch_end(step + done - 1, logs)
            if self._model.stop_training:
                break
        if not outputs:
            raise DataError(
                "Asked to train an epoch, but the data gave no batch. Is it exhausted, or "
                "smaller than one batch with drop_remainder?"
            )
        self._executor.check()
        return {**self._reader.read(outputs)[0], **self._executor.logs()}
