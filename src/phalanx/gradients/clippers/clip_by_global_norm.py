"""All gradients together to a norm of at most a limit (Pascanu et al. 2013)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.clippers.base import (
    BoundedClipper,
    ClipInputs,
    ClipResult,
    When,
    global_norm,
)
from phalanx.gradients.norms import clip_factor


@dataclass(frozen=True, kw_only=True)
class ClipByGlobalNorm(BoundedClipper):
    """Scales all gradients by one factor, so that their global L2 norm is `limit` at most."""

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """See `Clipper.clip`."""
        norm = global_norm(inputs.gradients)
        return ClipResult(gradients=shorten_all(inputs.gradients, norm, self.limit), norm=norm)


def shorten_all(
    gradients: Sequence[Gradient], norm: tf.Tensor, limit: float | tf.Tensor
) -> list[Gradient]:
    """`gradients`, whose global norm is `norm`, scaled to one of at most `limit`."""
    factor = clip_factor(norm, limit)  # may be too small for the gradients' dtype
    return [_shorten(gradient, factor) for gradient in gradients]


def _shorten(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _shorten(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.cast(tf.cast(gradient, tf.float32) * factor, gradient.dtype)


def clip_by_global_norm(limit: float, *, when: When = "after") -> ClipByGlobalNorm:
    """Scale all gradients to a global norm of at most `limit`, as Keras's `global_clipnorm`.

    Pascanu et al., "On the difficulty of training recurrent neural networks", 2013.
    """
    return ClipByGlobalNorm(limit=limit, when=when)
