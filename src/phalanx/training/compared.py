"""Which variables are to be the same on every replica, and by how much two copies differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.seam.models import is_assigned_alike
from phalanx.seam.rules import own_clipper_state
from phalanx.state.naming import model_variables, optimizer_variables
from phalanx.training.step import StepFunction


def compared_variables(model: Any, function: StepFunction, *, is_resumed: bool) -> list[Any]:
    """The variables that every replica holds alike.

    Left out are metrics, what replicas assign on their own in a step, and what clippers remember
    of a replica's own gradient.

    Args:
        model: the model, built.
        function: its training steps, which know what they assign once they have run.
        is_resumed: whether what replicas assign on their own was brought back and no step has
            run yet: then nothing says which variables these are.
    """
    optimizer = getattr(model, "optimizer", None)
    apart = {id(v) for metric in model.metrics for v in metric.variables}
    apart |= {id(v) for v in own_clipper_state(optimizer)}
    apart |= function.assigned.keys()
    weights = list(model_variables(model).values())
    chosen = []
    for variable in {id(v): v for v in weights}.values():
        is_own = id(variable) in apart or variable.aggregation in ("mean", "sum")
        is_own = is_own or (is_resumed and not variable.trainable)
        if not is_own or is_assigned_alike(model, variable):
            chosen.append(variable)
    chosen += [v for v in optimizer_variables(model).values() if id(v) not in apart]
    return [v for v in chosen if str(v.dtype) != "string"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How two copies of a variable differ.

    Attributes:
        largest: the largest difference of two entries; infinite where one is not finite.
        share: that as a share of the largest entry.
        entries: how many entries differ.
        size: how many there are.
        index: where the largest difference is.
        values: the two entries there.
    """

    largest: float
    share: float
    entries: int
    size: int
    index: tuple[int, ...]
    values: tuple[float, float]


def difference(one: np.ndarray, other: np.ndarray) -> Difference:
    """How `other` differs from `one`, an array of the same shape and dtype."""
    first, second = (np.atleast_1d(a).astype(np.float64) for a in (one, other))
    unlike = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    with np.errstate(invalid="ignore"):
        gap = np.where(unlike, np.abs(first - second), 0.0)
    gap = np.where(np.isnan(gap), np.inf, gap)
    at = np.unravel_index(int(gap.argmax()), gap.shape)
    scale = max(float(np.nanmax(np.abs(first), initial=0.0)), float(np.finfo(np.float32).tiny))
    return Difference(
        largest=float(gap[at]),
        share=float(gap[at]) / scale,
        entries=int(unlike.sum()),
        size=first.size,
        index=tuple(int(i) for i in at),
        values=(float(first[at]), float(second[at])),
    )
