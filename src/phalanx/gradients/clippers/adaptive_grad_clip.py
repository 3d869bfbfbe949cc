"""Each unit's gradient relative to the unit's weights (Brock et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.clippers.base import (
    ClipInputs,
    Clipper,
    ClipResult,
    When,
    global_norm,
    positive,
)
from phalanx.gradients.indexed_slices import rows_of
from phalanx.gradients.norms import clip_factor, norm


@dataclass(frozen=True, kw_only=True)
class AdaptiveGradClip(Clipper):
    """Adaptive gradient clipping: no unit's gradient exceeds `ratio` times its weights' norm."""

    ratio: float
    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("ratio", self.ratio)
        positive("epsilon", self.epsilon)

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """See `Clipper.clip`."""
        pairs = zip(inputs.gradients, inputs.weights, strict=True)
        clipped = [self._clip_one(gradient, weight) for gradient, weight in pairs]
        return ClipResult(gradients=clipped, norm=global_norm(inputs.gradients))

    def _clip_one(self, gradient: Gradient, weight: tf.Tensor) -> Gradient:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            unique = rows_of(gradient)
            own = tf.gather(weight, unique.indices)
            axes = list(range(1, own.shape.rank))
            values = self._shorten(unique.values, own, axes)
            values = tf.cast(values, gradient.values.dtype)
            return tf.IndexedSlices(values, unique.indices, gradient.dense_shape)
        rank = gradient.shape.rank
        axes = list(range(rank - 1)) if rank > 1 else list(range(rank))
        shortened = self._shorten(tf.cast(gradient, tf.float32), weight, axes)
        return tf.cast(shortened, gradient.dtype)

    def _shorten(self, values: tf.Tensor, weight: tf.Tensor, axes: list[int]) -> tf.Tensor:
        weight_norm = norm(tf.cast(weight, tf.float32), axes)
        limit = self.ratio * tf.maximum(weight_norm, self.epsilon)
        return values * clip_factor(norm(values, axes), limit)


def adaptive_grad_clip(
    ratio: float = 0.01, epsilon: float = 1e-3, *, when: When = "after"
) -> AdaptiveGradClip:
    """Clip each unit's gradient to `ratio` times the norm of its weights.

    A unit is what feeds one output: all axes but the last of a kernel, a whole vector, a
    row of an embedding. Weights count with a norm of `epsilon` at least. The paper leaves
    the last layer out: `per_layer({"*/head/*": None}, otherwise=adaptive())`.

    Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization",
    2021, equation 3.
    """
    return AdaptiveGradClip(ratio=ratio, epsilon=epsilon, when=when)
