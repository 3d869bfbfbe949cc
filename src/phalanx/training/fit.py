"""`fit`: Keras's loop, giving the answer that one device would have given."""

from __future__ import annotations

from typing import Any, get_args

import keras

from phalanx.callbacks.checkpoint import find_checkpoint
from phalanx.callbacks.progress import Progress
from phalanx.errors import ConfigurationError, TrainingError
from phalanx.keras_compat.data_adapters import split_validation
from phalanx.keras_compat.model_access import (
    assert_compiled,
    has_own_function,
)
from phalanx.keras_compat.rng import order_seed
from phalanx.training.broadcast_initial_state import broadcast_initial_state
from phalanx.training.callbacks import callback_list, flat_callbacks, with_gradient_logger
from phalanx.training.context import (
    call_context,
    make_function,
    make_stream,
    open_source,
)
from phalanx.training.end_of_data import UnevenInputs
from phalanx.training.fit_loop import SyncFitLoop
from phalanx.training.local_steps import sync_options
from phalanx.training.parameter_server.fit import fit_on_servers
from phalanx.training.parameter_server.ps_context import trains_on_servers
from phalanx.training.run_switches import steps_of_trial, switches


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
    *,
    uneven_data: UnevenInputs = "error",
) -> keras.callbacks.History:
    """What `keras.Model.fit` does, right under every synchronous strategy.

    Arguments are Keras's. Every worker is given the same global data and arguments;
    `batch_size` is the global batch, of which each replica takes its share. Weights,
    history and metrics come out as on one device, to float32 rounding, and equal on
    every worker.

    Args:
        model: a compiled Keras model, made inside or outside the strategy's scope.
        x: arrays, a `tf.data.Dataset`, a distributed dataset, a generator, a PyDataset.
        y: targets, where `x` does not contain them.
        batch_size: samples of a global batch, for arrays; 32 where None.
        epochs: the epoch to end before.
        verbose: 0, 1, 2 or "auto"; only the chief prints.
        callbacks: Keras callbacks, run on every worker with global logs.
        validation_split: share of the arrays, from their end, to validate on.
        validation_data: data to validate on.
        shuffle: True, False or "batch"; arrays are shuffled in the same way on every worker.
        class_weight: weight by class id.
        sample_weight: one weight a sample, for arrays.
        initial_epoch: the epoch to begin with.
        steps_per_epoch: global batches an epoch; one pass where None.
        validation_steps: batches of a validation; all where None.
        validation_batch_size: global batch of validation arrays.
        validation_freq: every how many epochs, or after which, to validate.
        uneven_data: what to do where workers' datasets or generators differ in length:
            "error", or "stop" to end each epoch for all with the shortest.

    Returns:
        Keras's History, the same on every worker.

    Raises:
        WorkerMismatchError: workers were given different data, models or arguments.
        DataError: an epoch found no batch.
        TrainingError: the model overrides `make_train_function`.
    """
    assert_compiled(model, "fit")
    if uneven_data not in get_args(UnevenInputs):
        raise ConfigurationError(f"uneven_data must be 'error' or 'stop'; found {uneven_data!r}.")
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
    requested = switches()
    if requested.trial_batches:
        epochs, validation_freq = min(epochs, initial_epoch + 1), 1
    if requested.overfit_batches:
        shuffle, steps_per_epoch = False, None
    callbacks = with_gradient_logger(callbacks)
    if trains_on_servers(model):
        return fit_on_servers(
            model,
            x,
            y,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation_data,
            shuffle=shuffle,
            class_weight=class_weight,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_of_trial(steps_per_epoch, None),
            validation_steps=steps_of_trial(validation_steps, None),
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
        )
    with call_context(model) as stage:
        source = open_source(
            stage,
            "fit",
            order_seed(),
            x,
            y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            uneven=uneven_data,
            only=requested.overfit_batches or None,
        )
        keeps = find_checkpoint(flat_callbacks(callbacks)) is not None
        built = keeps or sync_options().is_on
        function = make_function(stage, "train", source, built=built)
        broadcast_initial_state(stage, function)
        steps = steps_of_trial(steps_per_epoch, source.num_batches)
        stream = make_stream(stage, source, steps, uneven_data)
        listed = callback_list(
            stage,
            callbacks,
            verbose=verbose,
            epochs=epochs,
            steps=stream.steps,
            display=Progress,
            add_history=True,
        )
        loop = SyncFitLoop(stage, function, stream, listed, shows_progress=bool(verbose))
        if validation_data is not None and requested.overfit_batches:
            loop.validate_as(source, steps=None, freq=validation_freq)
        elif validation_data is not None:
            loop.validate_on(
                validation_data,
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
                freq=validation_freq,
            )
        return loop.run(initial_epoch, epochs)
