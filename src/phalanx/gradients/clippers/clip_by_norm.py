"""Each variable's gradient to a norm of at most a limit."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.clippers.base import BoundedClipper, ClipInputs, ClipResult, When
from phalanx.gradients.indexed_slices import values_of, with_values
from phalanx.gradients.norms import clip_factor, norm, norms


@dataclass(frozen=True, kw_only=True)
class ClipByNorm(BoundedClipper):
    """Scales each variable's gradient down to an L2 norm of `limit`."""

    def clip(self, inputs: ClipInputs) -> ClipResult:
        """See `Clipper.clip`."""
        gradients = inputs.gradients
        clipped: list[Gradient] = list(gradients)
        present = [i for i, g in enumerate(gradients) if g is not None]
        lengths = norms([values_of(gradients[i]) for i in present])
        for i, factor in zip(present, tf.unstack(clip_factor(lengths, self.limit)), strict=True):
            clipped[i] = with_values(gradients[i], lambda values, f=factor: values * f)
        return ClipResult(gradients=clipped, norm=norm(lengths))


def clip_by_norm(limit: float, *, when: When = "after") -> ClipByNorm:
    """Scale each variable's gradient to a norm of at most `limit`, as Keras's `clipnorm`."""
    return ClipByNorm(limit=limit, when=when)
