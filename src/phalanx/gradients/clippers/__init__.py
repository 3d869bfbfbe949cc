"""Clippers: pure, composable transforms of gradients. A new one is a file and a line here."""

from phalanx.gradients.clippers.adaptive_grad_clip import adaptive
from phalanx.gradients.clippers.base import Clipped, Clipper, Unclipped
from phalanx.gradients.clippers.clip_by_global_norm import by_global_norm
from phalanx.gradients.clippers.clip_by_norm import by_norm
from phalanx.gradients.clippers.clip_by_percentile import by_percentile
from phalanx.gradients.clippers.clip_by_value import by_value
from phalanx.gradients.clippers.per_layer import by_layer

__all__ = [
    "Clipped",
    "Clipper",
    "Unclipped",
    "adaptive",
    "by_global_norm",
    "by_layer",
    "by_norm",
    "by_percentile",
    "by_value",
]
