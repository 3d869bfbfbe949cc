"""All gradients together to a norm of at most a limit (Pascanu et al. 2013)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.clippers.base import Clipped, Clipper, When, global_norm, positive
from phalanx.gradients.reduce import Gradient, scale


@dataclass(frozen=True, kw_only=True)
class ByGlobalNorm(Clipper):
    """Scales all gradients by one factor, so that their global L2 norm is `limit` at most."""

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
        norm = global_norm(gradients)
        return Clipped(gradients=shorten_all(gradients, norm, self.limit), norm=norm)


def shorten_all(
    gradients: Sequence[Gradient], norm: tf.Tensor, limit: float | tf.Tensor
) -> list[Gradient]:
    """`gradients`, whose global norm is `norm`, scaled to one of at most `limit`."""
    return scale(gradients, limit / tf.maximum(norm, limit))


def by_global_norm(limit: float, *, when: When = "after") -> ByGlobalNorm:
    """Scale all gradients to a global norm of at most `limit`, as Keras's `global_clipnorm`.

    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013.
    """
    return ByGlobalNorm(limit=limit, when=when)
