"""A name for every variable of a model, the same in every process that builds it.

Keras numbers layers by the process (`dense`, `dense_1`), so a variable's path is no name. Its
place among the model's variables is one; the path is kept next to it, for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

MODEL = "model"
OPTIMIZER = "optimizer"
METRICS = "metrics"


def model_variables(model: Any) -> dict[str, Any]:
    """Weights, moving statistics and seeds by name: "model/3/kernel"."""
    return {f"{MODEL}/{i}/{v.name}": v for i, v in enumerate(model.variables)}


def optimizer_variables(model: Any) -> dict[str, Any]:
    """Slots, iterations, learning rates, averages, loss scales and clippers' state by name.

    Empty where the model has no Keras optimizer. An optimizer inside another
    (`LossScaleOptimizer`), and one that the model holds next to `compile`'s, as a GAN does, has its
    own number: "optimizer/1/0".
    """
    named: dict[str, Any] = {}
    seen: set[int] = set()
    own = [v for _, v in sorted(vars(model).items()) if isinstance(v, keras.optimizers.Optimizer)]
    found = [o for one in (getattr(model, "optimizer", None), *own) for o in _optimizers(one)]
    for j, optimizer in enumerate(dict.fromkeys(found)):
        for i, variable in enumerate(optimizer.variables):
            if id(variable) not in seen:
                named[f"{OPTIMIZER}/{j}/{i}"] = variable
                seen.add(id(variable))
    return named


def metric_variables(model: Any) -> dict[str, Any]:
    """What the model's metrics have counted so far, by name: "metrics/0/total"."""
    found = {id(v): v for metric in model.metrics for v in metric.variables}
    return {f"{METRICS}/{i}/{v.name}": v for i, v in enumerate(found.values())}


def paths_of(variables: dict[str, Any]) -> dict[str, str]:
    """For people: Keras's path of each variable."""
    return {name: str(getattr(v, "path", v.name)) for name, v in variables.items()}


def _optimizers(optimizer: Any) -> Iterator[Any]:
    """An optimizer and those inside it, the outermost first."""
    if optimizer is None or not hasattr(optimizer, "variables"):
        return
    yield optimizer
    for inner in (getattr(optimizer, "inner_optimizer", None), *_several(optimizer)):
        yield from _optimizers(inner)


def _several(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "optimizers", None) or [])
