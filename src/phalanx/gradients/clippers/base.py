"""What every clipper is: a pure transform of gradients, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.indexed_slices import values_of
from phalanx.gradients.norms import norm, norms

When = Literal["after", "before"]
_SMALLEST = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class ClipInputs:
    """What a clipper is given: one step's gradients.

    Attributes:
        gradients: dense, `tf.IndexedSlices` or None, one per variable. A NaN stays one.
        weights: the variables' values.
        paths: the variables' paths.
        state: what the clipper remembered, by name.
    """

    gradients: Sequence[Gradient]
    weights: Sequence[tf.Tensor]
    paths: Sequence[str]
    state: Mapping[str, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class ClipResult:
    """What a clipper made.

    Attributes:
        gradients: in the order, shapes and dtypes that came in.
        norm: the global norm before clipping, scalar float32.
        state: the clipper's new state, by name.
    """

    gradients: list[Gradient]
    norm: tf.Tensor
    state: dict[str, tf.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Clipper:
    """Base of the clippers.

    Attributes:
        when: "after" acts on the total over all replicas, "before" on each replica's own
            mean gradient.
    """

    when: When = "after"

    def __post_init__(self) -> None:
        if self.when not in ("after", "before"):
            raise ConfigurationError(f'when must be "after" or "before"; found {self.when!r}.')

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what the clipper remembers, float32 and 0 at first."""
        return {}

    def check(self, paths: Sequence[str]) -> None:
        """Refuse what cannot work for variables of these paths."""

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """Clip one step's gradients."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BoundedClipper(Clipper):
    """Base of the clippers that have one limit.

    Attributes:
        limit: finite, above 0; of an entry or of a norm.
    """

    limit: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("limit", self.limit)


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The L2 norm of all entries together, scalar float32; rows that repeat are summed.

    For every step: one pass, and 0 where the squares are too small for float32.
    `statistics.global_norm_at_any_scale` is right there too, in more passes.
    """
    return norm(norms([values_of(g) for g in gradients if g is not None]))


def is_number(value: object) -> bool:
    """Whether it is a number, Python's or NumPy's; True and False are none here."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above 0, as float32 sees it."""
    if not is_number(value) or not _SMALLEST <= value <= _LARGEST:
        raise ConfigurationError(f"{name} must be a finite number above 0; found {value!r}.")
