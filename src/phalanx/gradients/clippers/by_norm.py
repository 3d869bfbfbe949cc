"""Each variable's gradient to a norm of at most a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.clippers.base import Clipped, Clipper, When, global_norm, positive
from phalanx.gradients.reduce import Gradient
from phalanx.gradients.slices import with_values


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

        def shorten(values: tf.Tensor) -> tf.Tensor:
            return values * (self.limit / tf.maximum(tf.norm(values), self.limit))

        clipped = [with_values(g, shorten) for g in gradients]
        return Clipped(gradients=clipped, norm=global_norm(gradients))


def by_norm(limit: float, *, when: When = "after") -> ByNorm:
    """Scale each variable's gradient to a norm of at most `limit`, as Keras's `clipnorm`."""
    return ByNorm(limit=limit, when=when)
