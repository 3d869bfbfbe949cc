"""Every entry into [-limit, limit]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.clippers.base import Clipped, Clipper, When, global_norm, positive
from phalanx.gradients.reduce import Gradient
from phalanx.gradients.slices import with_values


@dataclass(frozen=True, kw_only=True)
class ByValue(Clipper):
    """Clips entry by entry; `limit` is the largest absolute value left."""

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
        clipped = [
            with_values(g, lambda v: tf.clip_by_value(v, -self.limit, self.limit))
            for g in gradients
        ]
        return Clipped(gradients=clipped, norm=global_norm(gradients))


def by_value(limit: float, *, when: When = "after") -> ByValue:
    """Clip every entry to [-limit, limit], as Keras's `clipvalue`."""
    return ByValue(limit=limit, when=when)
