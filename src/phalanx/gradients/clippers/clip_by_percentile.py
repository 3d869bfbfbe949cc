"""All gradients to a percentile of the norms seen lately (Seetharaman et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.gradients.clippers.base import (
    ClipInputs,
    Clipper,
    ClipResult,
    When,
    global_norm,
    is_number,
)
from phalanx.gradients.clippers.clip_by_global_norm import shorten_all


@dataclass(frozen=True, kw_only=True)
class ClipByPercentile(Clipper):
    """AutoClip: the limit is a percentile of the last `window` global norms."""

    percentile: float
    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.percentile) or not 0 < self.percentile <= 100:
            raise ConfigurationError(
                f"percentile must be above 0 and at most 100; found {self.percentile!r}."
            )
        whole = is_number(self.window) and isinstance(self.window, (int, np.integer))
        if not whole or self.window < 2:
            raise ConfigurationError(
                f"window must be an integer of at least 2; found {self.window!r}."
            )

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The norms seen, newest last, and how many there were."""
        return {"norms": (int(self.window),), "seen": ()}

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """See `Clipper.clip`. The first norm is not clipped, nor is one that is not finite."""
        norm, before = global_norm(inputs.gradients), inputs.state["norms"]
        finite = tf.math.is_finite(norm)
        norms = tf.where(finite, tf.concat([before[1:], [norm]], 0), before)
        seen = inputs.state["seen"] + tf.cast(finite, tf.float32)
        limit = self._limit(norms, seen)
        limit = tf.where((seen < 2) | (limit <= 0), norm, limit)
        clipped = shorten_all(inputs.gradients, norm, tf.maximum(limit, 1e-30))
        return ClipResult(gradients=clipped, norm=norm, state={"norms": norms, "seen": seen})

    def _limit(self, norms: tf.Tensor, seen: tf.Tensor) -> tf.Tensor:
        """The percentile of the norms that were seen, between neighbours linearly."""
        held = tf.clip_by_value(seen, 1.0, float(self.window))
        age = tf.range(self.window, 0, -1, dtype=tf.float32)
        ordered = tf.sort(tf.where(age <= held, norms, norms.dtype.max))
        place = (held - 1.0) * self.percentile / 100.0
        below = tf.cast(tf.floor(place), tf.int32)
        above = tf.minimum(below + 1, tf.cast(held, tf.int32) - 1)
        low, high = tf.gather(ordered, below), tf.gather(ordered, above)
        return low + (high - low) * (place - tf.floor(place))


def clip_by_percentile(
    percentile: float = 10.0, window: int = 1000, *, when: When = "after"
) -> ClipByPercentile:
    """Clip to the running `percentile` (0 to 100) of the last `window` global norms.

    Seetharaman et al., "AutoClip: Adaptive Gradient Clipping for Source Separation
    Networks", 2020.
    """
    return ClipByPercentile(percentile=percentile, window=window, when=when)
