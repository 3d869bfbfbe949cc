"""`train_on_batch` and its kin: one global batch, shared out like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import OptionError
from phalanx.seam.models import assert_compiled, class_weights_of, ordered_metrics
from phalanx.training.metrics import MetricReader
from phalanx.training.predict import predict
from phalanx.training.prepare import make_function, on_stage, open_source
from phalanx.training.step import Kind


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
            raise OptionError(
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
    return predict(model, tf.data.Dataset.from_tensors(x), verbose=0)


def _on_batch(model: Any, kind: Kind, x: Any, y: Any, sample_weight: Any, return_dict: bool) -> Any:
    call = f"{kind}_on_batch"
    assert_compiled(model, call)
    with on_stage(model) as stage:
        rows = len(np.asarray(tf.nest.flatten(x)[0]))
        source = open_source(stage, call, 0, x, y, sample_weight=sample_weight, batch_size=rows)
        function = make_function(stage, kind, source)
        model.reset_metrics()
        outputs = function.on_batch(next(source.open(0)))
        logs, _ = MetricReader(model, function).read(outputs)
    return logs if return_dict else ordered_metrics(model, logs)
