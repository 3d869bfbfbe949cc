"""`train_on_batch` and similar: one global batch, shared out like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from phalanx.data.batches import static_rows, with_free_batch_axis
from phalanx.data.undivided import divide, is_undivided, warn_of_undivided
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.model_access import (
    assert_compiled,
    class_weights_of,
    keras_predict_on_batch,
    ordered_metrics,
)
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.broadcast_initial_state import broadcast_on_first_build
from phalanx.training.context import (
    CallContext,
    assert_same_on_all_workers,
    call_context,
    make_function,
)
from phalanx.training.metrics import reader_of, share_out
from phalanx.training.parameter_server.on_batch import on_batch_of_servers
from phalanx.training.parameter_server.ps_context import trains_on_servers
from phalanx.training.predict import Predictions, predict
from phalanx.training.replica_local_state import LocalState
from phalanx.training.step_function import Kind, StepFunction


def train_on_batch(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: dict[int, float] | None = None,
    return_dict: bool = False,
) -> Any:
    """One training step on one global batch, given to every worker; metrics over all of it."""
    if class_weight is not None:
        if sample_weight is not None:
            raise ConfigurationError(
                "train_on_batch takes sample_weight or class_weight; both were given. Multiply "
                "the class weights into sample_weight."
            )
        sample_weight = class_weights_of(y, class_weight)
    return _on_batch(model, "train", x, y, sample_weight, return_dict)


def test_on_batch(
    model: Any, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
) -> Any:
    """Evaluate one global batch, given to every worker; metrics over all of it."""
    return _on_batch(model, "test", x, y, sample_weight, return_dict)


def predict_on_batch(model: Any, x: Any) -> Any:
    """Predictions for one global batch: every row, in order, on every worker."""
    data = (_tensors(keras.tree.lists_to_tuples(x)),)
    if trains_on_servers(model):
        return predict(model, tf.data.Dataset.from_tensors(data), verbose=0)
    with call_context(model) as stage, phase_tracker.during("compute"):
        if not tf.distribute.has_strategy():
            return keras_predict_on_batch(model, x)
        undivided = _is_undivided(stage, data)
        total, parts = divide(data, stage.topology, undivided=undivided)
        requirements = {
            "number of samples": int(total),
            "kind of data": keras.tree.flatten(keras.tree.map_structure(_spec, data)),
        }
        assert_same_on_all_workers(
            stage.strategy, stage.topology, "predict_on_batch", requirements, None
        )
        predictions = Predictions(stage.topology)
        function = _function_for(stage, "predict", data, undivided=undivided)
        predictions.add(function.on_batch((total, parts)))
        return predictions.merge(stage)


def _on_batch(model: Any, kind: Kind, x: Any, y: Any, sample_weight: Any, return_dict: bool) -> Any:
    assert_compiled(model, f"{kind}_on_batch")
    # Keras gives a step all three, None for what there is not.
    data = _tensors((x, y, sample_weight))
    if trains_on_servers(model):
        logs = on_batch_of_servers(model, kind, data)
        return logs if return_dict else ordered_metrics(model, logs)
    with call_context(model) as stage, phase_tracker.during("compute"):
        undivided = _is_undivided(stage, data)
        function = _function_for(stage, kind, data, undivided=undivided)
        if kind == "train":
            function.add_up(is_local=False)
            broadcast_on_first_build(stage, function)
        share_out(model, stage.topology)  # some metrics are never reset
        model.reset_metrics()
        outputs = function.on_batch(divide(data, stage.topology, undivided=undivided))
        logs, _ = reader_of(model, function).read(outputs, is_last=True)
        if kind == "train":
            LocalState.of(model, function).average()
    return logs if return_dict else ordered_metrics(model, logs)


def _is_undivided(stage: CallContext, data: Any) -> bool:
    undivided = bool(is_undivided(data, stage.topology.total, "unknown"))
    if undivided and stage.topology.is_chief:
        warn_of_undivided()
    return undivided


def _function_for(stage: CallContext, kind: Kind, data: Any, *, undivided: bool) -> StepFunction:
    """The model's step function for `data`, one batch."""
    before = getattr(stage.model, f"{kind}_function")
    known = before.batch_size if isinstance(before, StepFunction) else None
    size = None if undivided else static_rows(data)
    full = max(known or 0, size or 0)
    spec = with_free_batch_axis(keras.tree.map_structure(_spec, data))
    source = _OneBatch(spec, None if undivided else full, size, may_be_undivided=undivided)
    return make_function(stage, kind, source)


def _tensors(data: Any) -> Any:
    return keras.tree.map_structure(
        lambda v: v if v is None or tf.is_tensor(v) else tf.convert_to_tensor(v), data
    )


def _spec(value: Any) -> Any:
    return None if value is None else tf.type_spec_from_value(value)


@dataclass(frozen=True)
class _OneBatch:
    """What a step function asks of the source of its batches."""

    batch_spec: Any
    full_batch_size: int | None
    batch_size: int | None
    num_samples: int | None = None
    counted: bool = True
    num_batches: int = 1
    may_be_empty: bool = True
    may_be_undivided: bool = False
