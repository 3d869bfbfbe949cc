"""Clippers: pure, composable transforms of gradients. A new one is a file and a line here."""

from phalanx.gradients.clippers.adaptive_grad_clip import adaptive_grad_clip
from phalanx.gradients.clippers.base import ClipInputs, Clipper, ClipResult
from phalanx.gradients.clippers.clip_by_global_norm import clip_by_global_norm
from phalanx.gradients.clippers.clip_by_norm import clip_by_norm
from phalanx.gradients.clippers.clip_by_percentile import clip_by_percentile
from phalanx.gradients.clippers.clip_by_value import clip_by_value
from phalanx.gradients.clippers.per_layer import per_layer

__all__ = [
    "ClipInputs",
    "ClipResult",
    "Clipper",
    "adaptive_grad_clip",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_percentile",
    "clip_by_value",
    "per_layer",
]
