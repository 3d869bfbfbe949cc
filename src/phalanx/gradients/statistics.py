"""Numbers that describe gradients: pure functions, in the graph, of bounded size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.indexed_slices import sum_duplicates, values_of, with_values
from phalanx.gradients.norms import norm

STATISTICS = ("norm", "mean", "std", "max_abs", "zero_fraction", "nonfinite_count")
BUCKETS = 30


def statistics(gradient: Gradient) -> dict[str, tf.Tensor]:
    """The `STATISTICS` of one gradient, float32 scalars.

    `nonfinite_count` counts the entries that are NaN or infinite; the others are over the finite
    ones. Rows that `tf.IndexedSlices` do not hold are zeros, and count.
    """
    stored = values_of(gradient)
    finite = tf.math.is_finite(stored)
    values = tf.where(finite, stored, 0.0)
    lost = tf.reduce_sum(tf.cast(~finite, tf.float32))
    entries = tf.maximum(_entries(gradient) - lost, 1.0)
    largest = tf.reduce_max(tf.concat([[0.0], tf.reshape(tf.abs(values), [-1])], 0))
    unit = tf.where(largest > 0, largest, 1.0)  # the square of 1e20 has no float32
    values /= unit
    mean = tf.reduce_sum(values) / entries
    squares = tf.reduce_sum(tf.square(values))
    absent = _entries(gradient) - tf.cast(tf.size(stored), tf.float32)
    deviations = tf.where(finite, tf.square(values - mean), 0.0)
    spread = tf.reduce_sum(deviations) + absent * tf.square(mean)
    zeros = tf.reduce_sum(tf.cast(stored == 0, tf.float32)) + absent
    return {
        "norm": unit * tf.sqrt(squares),
        "mean": unit * mean,
        "std": unit * tf.sqrt(spread / entries),
        "max_abs": largest,
        "zero_fraction": zeros / entries,
        "nonfinite_count": lost,
    }


def histogram(gradient: Gradient) -> tf.Tensor:
    """`BUCKETS` rows of (left, right, count), float64, as TensorBoard's histograms are.

    Buckets are of equal width between the smallest and the largest finite stored entry.
    """
    flat = tf.reshape(values_of(gradient), [-1])
    values = tf.boolean_mask(flat, tf.math.is_finite(flat))
    values = tf.concat([values, tf.zeros([tf.cast(tf.size(values) == 0, tf.int32)])], 0)
    low, high = tf.reduce_min(values), tf.reduce_max(values)
    # Halved, for the difference of the largest float32 values has no float32.
    half = (high / 2 - low / 2) / BUCKETS
    half = tf.maximum(half, tf.maximum(tf.abs(high), 1e-30) * 5e-7)
    bucket = tf.cast((values / 2 - low / 2) / half, tf.int32)
    counts = tf.math.bincount(
        tf.clip_by_value(bucket, 0, BUCKETS - 1), minlength=BUCKETS, maxlength=BUCKETS
    )
    edge = tf.cast(half, tf.float64) * 2 * tf.range(BUCKETS + 1, dtype=tf.float64)
    edge += tf.cast(low, tf.float64)
    return tf.stack([edge[:-1], edge[1:], tf.cast(counts, tf.float64)], axis=1)


def global_norm_at_any_scale(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The global L2 norm, scalar float32, right wherever it has a float32 itself.

    The clippers' own (`clippers.base.global_norm`) is for every step: one pass, and 0 where the
    squares are too small for float32.
    """
    lengths = [norm(values_of(g)) for g in gradients if g is not None]
    return norm(tf.stack(lengths)) if lengths else tf.zeros([])


def dot(a: Sequence[Gradient], b: Sequence[Gradient]) -> tf.Tensor:
    """The inner product of two gradients of the same variables, scalar float32."""
    products = [_dot(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return tf.add_n(products) if products else tf.zeros([])


def cosine(a: Sequence[Gradient], b: Sequence[Gradient]) -> tf.Tensor:
    """The cosine of the angle between two gradients, -1 to 1; 0 where one is zero."""
    # Each at length 1 first, for the product of two of 1e20 has no float32.
    return dot(_of_length_one(a), _of_length_one(b))


def _of_length_one(gradients: Sequence[Gradient]) -> list[Gradient]:
    length = global_norm_at_any_scale(gradients)
    return [with_values(g, lambda v: tf.math.divide_no_nan(v, length)) for g in gradients]


def _dot(a: Gradient, b: Gradient) -> tf.Tensor:
    if isinstance(a, tf.IndexedSlices) and isinstance(b, tf.IndexedSlices):
        return _dot_rows(sum_duplicates(a), sum_duplicates(b))
    if isinstance(a, tf.IndexedSlices):
        a, b = b, a
    if isinstance(b, tf.IndexedSlices):
        rows = tf.gather(tf.cast(a, tf.float32), b.indices)
        return tf.reduce_sum(rows * tf.cast(b.values, tf.float32))
    return tf.reduce_sum(tf.cast(a, tf.float32) * tf.cast(b, tf.float32))


def _dot_rows(a: tf.IndexedSlices, b: tf.IndexedSlices) -> tf.Tensor:
    """The inner product over the rows that both hold; each holds a row once."""
    rows = tf.shape(a.indices)[0]
    _, position = tf.unique(tf.concat([a.indices, b.indices], 0))
    size = tf.size(position)
    own = tf.math.unsorted_segment_sum(tf.cast(a.values, tf.float32), position[:rows], size)
    other = tf.math.unsorted_segment_sum(tf.cast(b.values, tf.float32), position[rows:], size)
    return tf.reduce_sum(own * other)


def _entries(gradient: Gradient) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.reduce_prod(tf.cast(gradient.dense_shape, tf.float32))
    return tf.cast(tf.size(gradient), tf.float32)


class NoiseScale:
    """Estimates the noise scale from gradient norms at two batch sizes, smoothed.

    McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1:
    with |G_B|^2 the squared norm of a mean gradient over B samples,

        |G|^2     = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
        tr(Sigma) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

    are unbiased, and B_simple = tr(Sigma) / |G|^2. Both are smoothed apart, for the ratio
    of two noisy numbers is biased.
    """

    def __init__(self, smoothing: float = 0.95) -> None:
        """Start with nothing seen; `smoothing` (0 to 1) is what an update keeps."""
        self._smoothing = smoothing
        self._kept = 1.0
        self._squared_norm = 0.0
        self._trace = 0.0

    def update(
        self,
        small_batch: float,
        small_squared_norm: float,
        big_batch: float,
        big_squared_norm: float,
    ) -> None:
        """Take in one step: mean gradients over `small_batch` and over `big_batch` samples."""
        if not 0 < small_batch < big_batch or not math.isfinite(
            small_squared_norm + big_squared_norm
        ):
            return
        difference = big_batch * big_squared_norm - small_batch * small_squared_norm
        squared_norm = difference / (big_batch - small_batch)
        trace = (small_squared_norm - big_squared_norm) / (1 / small_batch - 1 / big_batch)
        keep = self._smoothing
        self._squared_norm = keep * self._squared_norm + (1 - keep) * squared_norm
        self._trace = keep * self._trace + (1 - keep) * trace
        self._kept *= keep

    @property
    def squared_norm(self) -> float:
        """The smoothed estimate of |G|^2, 0 before the first update."""
        return self._unbiased(self._squared_norm)

    @property
    def trace(self) -> float:
        """The smoothed estimate of tr(Sigma), 0 before the first update."""
        return self._unbiased(self._trace)

    @property
    def critical_batch_size(self) -> float | None:
        """B_simple, in samples; None while the estimates do not make sense."""
        if self.squared_norm <= 0 or self.trace < 0:
            return None
        return self.trace / self.squared_norm

    def _unbiased(self, average: float) -> float:
        return average / (1 - self._kept) if self._kept < 1 else 0.0
