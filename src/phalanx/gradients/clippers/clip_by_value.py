"""Every entry into [-limit, limit]."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.clippers.base import (
    BoundedClipper,
    ClipInputs,
    ClipResult,
    When,
    global_norm,
)
from phalanx.gradients.indexed_slices import with_values


@dataclass(frozen=True, kw_only=True)
class ClipByValue(BoundedClipper):
    """Clips entry by entry; `limit` is the largest absolute value left."""

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """See `Clipper.clip`."""
        clipped = [
            with_values(g, lambda v: tf.clip_by_value(v, -self.limit, self.limit))
            for g in inputs.gradients
        ]
        return ClipResult(gradients=clipped, norm=global_norm(inputs.gradients))


def clip_by_value(limit: float, *, when: When = "after") -> ClipByValue:
    """Clip every entry to [-limit, limit], as Keras's `clipvalue`."""
    return ClipByValue(limit=limit, when=when)
