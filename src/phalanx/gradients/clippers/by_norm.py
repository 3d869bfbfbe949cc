"""Each variable's gradient to a norm of at most a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.clippers.base import Clipped, Clipper, When, positive
from phalanx.gradients.norms import norm, norms, shrinking
from phalanx.gradients.reduce import Gradient
from phalanx.gradients.slices import values_of, with_values


@dataclass(frozen=True, kw_only=True)
class ByNorm(Clipper):
    """Scales each variable's gradient down to an L2 norm of `limit`."""

    limit: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("limit", self.limit)

    def clip(
        self,
        gradients: Sequence[Gradient],
        weights: Sequence[tf.Tensor],
        paths: Sequence[str],
        state: Mapping[str, tf.Tensor],
    ) -> Clipped:
        """See `Clipper.clip`."""
        clipped: list[Gradient] = list(gradients)
        present = [i for i, g in enumerate(gradients) if g is not None]
        lengths = norms([values_of(gradients[i]) for i in present])
        for i, factor in zip(present, tf.unstack(shrinking(lengths, self.limit)), strict=True):
            clipped[i] = with_values(gradients[i], lambda values, f=factor: values * f)
        return Clipped(gradients=clipped, norm=norm(lengths))


def by_norm(limit: float, *, when: When = "after") -> ByNorm:
    """Scale each variable's gradient to a norm of at most `limit`, as Keras's `clipnorm`."""
    return ByNorm(limit=limit, when=when)
