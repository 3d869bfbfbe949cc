"""Clip gradients after they were added up over all replicas: `phalanx.clip`.

    from phalanx import clip

    optimizer = clip.attach(keras.optimizers.Adam(1e-3), clip.clip_by_global_norm(1.0))

Keras's own `clipvalue`, `clipnorm` and `global_clipnorm` need none of this: under Phalanx
they act on the total as they are.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.gradients.clipper_chain import ClipperChain, OnNonfinite
from phalanx.gradients.clippers import (
    ClipInputs,
    Clipper,
    ClipResult,
    adaptive_grad_clip,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_percentile,
    clip_by_value,
    per_layer,
)
from phalanx.gradients.nonfinite import guard_of, install_guard
from phalanx.keras_compat.optimizer_clippers import (
    attach_clippers,
    clippers_of,
    innermost,
    parts_of,
)

__all__ = [
    "ClipInputs",
    "ClipResult",
    "Clipper",
    "adaptive_grad_clip",
    "attach",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_percentile",
    "clip_by_value",
    "nonfinite_count",
    "per_layer",
]


def attach(optimizer: Any, *clippers: Clipper, on_nonfinite: OnNonfinite | None = None) -> Any:
    """Let `optimizer` clip every total gradient by `clippers`, in order.

    Works under `fit`, with a custom `train_step` and in custom training loops, with gradient
    accumulation (the accumulated mean is clipped), loss scaling (the unscaled gradient
    is) and on one device.

    Args:
        optimizer: a Keras 3 optimizer that has no clippers yet; it is changed and returned.
        clippers: from this module; those with `when="before"` clip each replica's own mean
            gradient before the reduction.
        on_nonfinite: "raise", "skip", "zero" or "ignore" a step whose total gradient has a
            NaN or infinite entry. None raises under `fit` and ignores elsewhere. In a
            custom training loop, which cannot be ended from within a step, "skip" and "zero"
            act under `phalanx.enable()` or after `phalanx.distribute_optimizer`.

    Raises:
        ConfigurationError: not an optimizer, a `MultiOptimizer`, not a clipper, a second call for
            one optimizer, or a pattern that matches no variable (as soon as the variables are
            known).
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            "phalanx.clip.attach needs a keras.optimizers.Optimizer (Keras 3); found "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    if parts_of(innermost(optimizer)):
        raise ConfigurationError(
            f"Asked to give {optimizer.name!r} clippers, a MultiOptimizer, which updates nothing "
            "itself. Attach them to each of its optimizers, before they are used."
        )
    if clippers_of(optimizer) is not None:
        raise ConfigurationError(
            f"Asked to give {optimizer.name!r} clippers a second time. Pass all of them in one "
            "call; they run in the order given."
        )
    attach_clippers(optimizer, ClipperChain(clippers=clippers, on_nonfinite=on_nonfinite))
    inner = innermost(optimizer)
    if on_nonfinite in ("skip", "zero") and inner is optimizer:
        install_guard(inner, tf.distribute.get_strategy(), on_nonfinite)
    return optimizer


def nonfinite_count(optimizer: Any) -> int:
    """How many steps of `optimizer` had a total gradient that was not finite.

    Counted where "raise", "skip" or "zero" is in force, from the start of the last `fit`, or
    from `use` on in a custom training loop.
    """
    health = guard_of(innermost(optimizer))
    return 0 if health is None else health.count
