"""`fit` on a cluster whose workers train each at its own pace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import keras

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.progress import Progress
from phalanx.keras_compat.rng import order_seed
from phalanx.training.callbacks import callback_list
from phalanx.training.context import CallContext
from phalanx.training.evaluate import validation_of
from phalanx.training.parameter_server.epochs import PSFitLoop
from phalanx.training.parameter_server.evaluate import evaluation_on_servers
from phalanx.training.parameter_server.ps_context import build_on_servers, ps_call_context
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_data import worker_data
from phalanx.training.parameter_server.worker_step import WorkerStep


def fit_on_servers(
    model: Any,
    x: Any,
    y: Any,
    *,
    epochs: int,
    initial_epoch: int,
    verbose: int | str,
    callbacks: Any,
    validation_data: Any,
    validation_steps: int | None,
    validation_batch_size: int | None,
    validation_freq: Any,
    steps_per_epoch: int | None,
    sample_weight: Any,
    batch_size: int | None,
    **options: Any,
) -> keras.callbacks.History:
    """`phalanx.fit`, which see, under parameter servers."""
    with ps_call_context(model, trains=True) as stage:
        data = worker_data(
            stage.strategy,
            x,
            y,
            seed=order_seed(),
            steps=steps_per_epoch,
            sample_weight=sample_weight,
            batch_size=batch_size,
            **options,
        )
        build_on_servers(stage, data.batch_spec, trains=True)
        model.reset_metrics()
        step = WorkerStep(model, "train", data, stage.strategy)
        dispatch = StepScheduler(stage.strategy, step, data)
        listed = callback_list(
            stage,
            callbacks,
            verbose=verbose,
            epochs=epochs,
            steps=steps_per_epoch or data.steps,
            display=Progress,
            add_history=True,
        )
        _bind_callbacks(stage, listed.callbacks, dispatch.workers)
        loop = PSFitLoop(
            stage, step, data, dispatch, listed, steps_per_epoch, shows_progress=bool(verbose)
        )
        if validation_data is not None:
            loop.evaluation = validation_of(
                model,
                validation_data,
                batch_size=validation_batch_size or batch_size,
                steps=validation_steps,
                open_data=partial(evaluation_on_servers, stage),
            )
            loop.validation_freq = validation_freq
        return loop.run(initial_epoch, epochs)


def _bind_callbacks(stage: CallContext, callbacks: Iterable[Any], workers: int) -> None:
    """Give callbacks the number of workers in `cluster.ps_tasks` until `stage` ends."""
    for callback in callbacks:
        if isinstance(callback, Callback):
            stage.exit.callback(setattr, callback, "cluster", callback.cluster)
            callback.cluster = replace(callback.cluster, ps_tasks=workers)
