"""Look at the gradients of one step: each replica's own, and the total.

A sampled step is traced with a `GradientProbe` in its `StepContext`. It collects tensors that
the step returns as values, so the graph of another step has none of this.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient, reduce_sum
from phalanx.gradients.statistics import (
    BUCKETS,
    STATISTICS,
    cosine,
    global_norm_at_any_scale,
    histogram,
    statistics,
)

_SALT = 0x5EED


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """What to look at.

    Attributes:
        layers: patterns of variable paths, such as "*/dense*"; None looks at all.
        sample_rate: the share of layers to look at in one step, drawn again from the
            step's number, in the same way on every worker.
        histograms: whether to make histograms too.
    """

    layers: tuple[str, ...] | None = None
    sample_rate: float = 1.0
    histograms: bool = True

    def sees(self, path: str) -> bool:
        """Whether a variable of this path is looked at, now and then at least."""
        layer = path.rpartition("/")[0]
        patterns = self.layers
        return patterns is None or any(
            fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in (path, layer)
        )


@dataclass(frozen=True, kw_only=True)
class GradientSnapshot:
    """What an optimizer did with a gradient, seen from one replica.

    All sequences run over the same variables; gradients are unscaled means.
    """

    paths: Sequence[str]
    local: Sequence[Gradient]
    total: Sequence[Gradient]
    clipped: Sequence[Gradient]
    before: Sequence[tf.Tensor]
    after: Sequence[tf.Tensor]
    count: tf.Tensor
    batch: tf.Tensor
    replicas: int


class GradientProbe:
    """Collects what the replicas of this process see in one step.

    Attributes:
        seen: by replica, nested dictionaries of tensors, once the step was traced.
        replicas: replicas in the worker group, likewise.
    """

    def __init__(self, lens: ProbeConfig, *, step: tf.Tensor, note: tf.Tensor) -> None:
        """Open for one step.

        Args:
            lens: what to look at.
            step: the step's number, scalar int64; seeds the sampling of layers.
            note: scalar float32 that the chief's replica broadcasts in the same collective.
        """
        self._lens = lens
        self._step = step
        self._note = note
        self.replicas = 1
        self.seen: dict[int, dict[str, Any]] = {}

    def record(self, replica: int, applied: GradientSnapshot) -> None:
        """Take in what `replica` saw; a second optimizer in the step adds to the first's."""
        self.replicas = applied.replicas
        keep = self._draw(applied.paths)
        variables = {
            path: self._sample(replica, i, applied, keep)
            for i, path in enumerate(applied.paths)
            if self._lens.sees(path) and applied.local[i] is not None
        }
        seen = self.seen.setdefault(replica, {"variables": {}, "global": {}})
        seen["variables"].update(variables)
        if not seen["global"]:
            seen["global"] = self._global(replica, applied)

    def _draw(self, paths: Sequence[str]) -> dict[str, tf.Tensor]:
        """Whether each layer is in this step's sample: the same draw on every worker."""
        layers = list(dict.fromkeys(path.rpartition("/")[0] for path in paths))
        seed = tf.stack([tf.cast(self._step, tf.int64), tf.constant(_SALT, tf.int64)])
        drawn = tf.random.stateless_uniform([len(layers)], seed) < self._lens.sample_rate
        return {layer: drawn[i] for i, layer in enumerate(layers)}

    def _sample(
        self, replica: int, i: int, applied: GradientSnapshot, keep: dict[str, tf.Tensor]
    ) -> dict[str, Any]:
        views = {"local": applied.local[i]}
        if replica == 0:
            views["total"] = applied.total[i]

        def sample() -> dict[str, Any]:
            found: dict[str, Any] = {name: statistics(view) for name, view in views.items()}
            if self._lens.histograms:
                found |= {f"{name}_histogram": histogram(v) for name, v in views.items()}
            moved = tf.norm(tf.cast(applied.after[i] - applied.before[i], tf.float32))
            size = tf.norm(tf.cast(applied.before[i], tf.float32))
            return {**found, "update_ratio": tf.math.divide_no_nan(moved, size)}

        if self._lens.sample_rate >= 1.0:
            return {"kept": tf.constant(True), **sample()}
        kept = keep[applied.paths[i].rpartition("/")[0]]
        return {"kept": kept, **tf.cond(kept, sample, lambda: self._blank(views))}

    def _blank(self, views: Iterable[str]) -> dict[str, Any]:
        """What a layer outside this step's sample gives: zeros, for nearly nothing."""
        zero = tf.zeros([])
        blank: dict[str, Any] = {view: dict.fromkeys(STATISTICS, zero) for view in views}
        if self._lens.histograms:
            empty = tf.zeros([BUCKETS, 3], tf.float64)
            blank |= {f"{view}_histogram": empty for view in views}
        return {**blank, "update_ratio": zero}

    def _global(self, replica: int, applied: GradientSnapshot) -> dict[str, tf.Tensor]:
        own = global_norm_at_any_scale(applied.local)
        chief = tf.cast(replica == 0, tf.float32)
        # Weighed by samples, the mean of |G_r|^2 is |G|^2 + tr(Sigma) * holders / batch.
        weight = tf.math.divide_no_nan(
            tf.cast(applied.count, tf.float32), tf.cast(applied.batch, tf.float32)
        )
        holders = tf.cast(applied.count > 0, tf.float32)
        weighed, note = tf.square(own), self._note
        if applied.replicas > 1:
            weighed, holders, note = reduce_sum([weighed * weight, holders, self._note * chief])
        return {
            "note": note,
            "count": applied.count,
            "batch": applied.batch,
            "norm": own,
            "mean_squared_norm": weighed,
            "holders": holders,
            "total_norm": global_norm_at_any_scale(applied.total),
            "clipped_norm": global_norm_at_any_scale(applied.clipped),
            "cosine": cosine(applied.local, applied.total),
        }
