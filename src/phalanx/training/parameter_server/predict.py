"""`predict` on a cluster whose workers go each at its own pace: every row once, in order."""

from __future__ import annotations

from typing import Any

import keras

from phalanx.callbacks.progress import EvaluationProgress
from phalanx.errors import DataError
from phalanx.keras_compat.model_access import concat_batches
from phalanx.keras_compat.tf_distribute import num_ps_workers
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.callbacks import callback_list
from phalanx.training.parameter_server.ps_context import build_on_servers, ps_call_context
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_data import worker_data
from phalanx.training.parameter_server.worker_step import StepResult, WorkerStep


def predict_on_servers(
    model: Any,
    x: Any,
    *,
    steps: int | None,
    verbose: int | str,
    callbacks: Any,
    batch_size: int | None,
) -> Any:
    """`phalanx.predict`, which see, under parameter servers."""
    if callable(x) and not hasattr(x, "__getitem__"):
        raise DataError(
            "Asked to predict what a function makes on each worker, which has no order. Pass "
            "arrays or a tf.data.Dataset."
        )
    with ps_call_context(model) as stage:
        data = worker_data(stage.strategy, x, None, seed=0, steps=steps, batch_size=batch_size)
        build_on_servers(stage, data.batch_spec, predicts=True)
        step = WorkerStep(model, "predict", data, stage.strategy)
        dispatch = StepScheduler(stage.strategy, step, data)
        listed = callback_list(
            stage,
            callbacks,
            verbose=verbose,
            epochs=1,
            steps=steps or data.steps,
            display=EvaluationProgress,
        )
        workers = num_ps_workers(stage.strategy) if data.ends_by_worker else 0
        with phase_tracker.during("compute"):
            batches = _batches(model, dispatch, steps, listed, workers)
        return _in_order(batches, step.structure)


def _batches(
    model: Any, dispatch: StepScheduler, steps: int | None, callbacks: Any, workers: int
) -> dict[int, list[Any]]:
    """What was predicted, by the batch's number in the data."""
    found: dict[int, list[Any]] = {}
    model.stop_predicting = False
    callbacks.on_predict_begin()
    for result in dispatch.epoch(steps):
        callbacks.on_predict_batch_begin(len(found))
        found[_number(result, workers)] = result.outputs
        callbacks.on_predict_batch_end(len(found) - 1, {"outputs": result.outputs})
        if model.stop_predicting:
            dispatch.stop()
    callbacks.on_predict_end()
    if not found:
        raise DataError("Asked to predict, but the data gave no batch. Pass at least one.")
    return found


def _number(result: StepResult, workers: int) -> int:
    """Each worker numbers its part of a shared dataset, each W-th batch, for itself."""
    return result.batch * workers + result.worker if workers else result.batch


def _in_order(batches: dict[int, list[Any]], structure: Any) -> Any:
    rows = [batches[number] for number in sorted(batches)]
    flat = [concat_batches(leaf) for leaf in zip(*rows, strict=True)]
    return keras.tree.pack_sequence_as(structure, flat)
