"""Numbers that describe gradients, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from phalanx.gradients.statistics import (
    BUCKETS,
    STATISTICS,
    cosine,
    dot,
    global_norm_at_any_scale,
    histogram,
    statistics,
)

RNG = np.random.default_rng(0)


def by_hand(array):
    flat = np.asarray(array, "float64").ravel()
    finite = flat[np.isfinite(flat)]
    return {
        "norm": np.sqrt((finite**2).sum()),
        "mean": finite.mean() if finite.size else 0.0,
        "std": finite.std() if finite.size else 0.0,
        "max_abs": np.abs(finite).max(initial=0),
        "zero_fraction": (finite == 0).mean() if finite.size else 0.0,
        "nonfinite_count": flat.size - finite.size,
    }


def numbers(gradient):
    return {name: float(value) for name, value in statistics(gradient).items()}


def sparse(rows=6):
    values = tf.constant(RNG.normal(size=(4, 3)).astype("float32"))
    return tf.IndexedSlices(values, tf.constant([2, 0, 2, 5]), tf.constant([rows, 3]))


ARRAYS = {
    "plain": RNG.normal(size=(5, 4)),
    "far from zero": RNG.normal(size=50) + 1000,
    "with zeros": np.maximum(RNG.normal(size=(5, 4)), 0),
    "of zeros": np.zeros(7),
    "whose squares overflow": np.array([3e20, -4e20, 0.0]),
    "scalar": np.array(-3.0),
    "one entry": np.array([2.0]),
    "empty": np.zeros((0, 3)),
    "with NaN and infinity": np.array([1.0, np.nan, -2.0, np.inf, 0.0, -np.inf]),
    "all NaN": np.full(3, np.nan),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_statistics_are_numpys(name):
    array = ARRAYS[name].astype("float32")
    assert set(numbers(tf.constant(array))) == set(STATISTICS)
    assert numbers(tf.constant(array)) == pytest.approx(by_hand(array), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_statistics_are_float32_whatever_the_gradient(dtype):
    gradient = tf.cast(ARRAYS["plain"], dtype)
    assert all(value.dtype == tf.float32 for value in statistics(gradient).values())
    expected = by_hand(tf.cast(gradient, tf.float64).numpy())
    assert numbers(gradient) == pytest.approx(expected, rel=1e-5)


def test_slices_count_as_the_complete_variable():
    gradient = sparse()
    assert numbers(gradient) == pytest.approx(
        by_hand(tf.convert_to_tensor(gradient).numpy()), rel=1e-5
    )


def test_an_embedding_of_more_entries_than_an_int32_can_count():
    values = tf.ones([1, 512])
    gradient = tf.IndexedSlices(values, tf.constant([7]), tf.constant([10_000_000, 512]))
    found = numbers(gradient)
    assert found["mean"] == pytest.approx(512 / 5.12e9, rel=1e-5)
    assert found["zero_fraction"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", [n for n in ARRAYS if n != "far from zero"])
def test_a_histogram_counts_every_finite_entry_once(name):
    array = ARRAYS[name].astype("float32")
    left, right, count = histogram(tf.constant(array)).numpy().T
    assert len(count) == BUCKETS
    finite = array[np.isfinite(array)]
    assert count.sum() == max(finite.size, 0 if finite.size else 1)
    assert (left < right).all()
    np.testing.assert_allclose(left[1:], right[:-1])
    if finite.size:
        assert left[0] == finite.min()
        assert right[-1] == pytest.approx(max(finite.max(), right[-1]))


def test_a_histogram_is_numpys():
    array = RNG.normal(size=1000).astype("float32")
    left, right, count = histogram(tf.constant(array)).numpy().T
    expected, edges = np.histogram(array, bins=BUCKETS)
    np.testing.assert_allclose(left, edges[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(right, edges[1:], rtol=1e-5, atol=1e-6)
    assert np.abs(count - expected).max() <= 1  # an entry on an edge
    assert count.sum() == 1000


@pytest.mark.parametrize("values", [[-3e38, 0.0, 3e38], [3e38, 3e38], [-3.4e38], [1e-38, -1e-38]])
def test_the_edges_of_the_largest_and_smallest_gradients_are_finite(values):
    buckets = histogram(tf.constant(values)).numpy()
    assert np.isfinite(buckets).all()
    assert (buckets[:, 0] <= buckets[:, 1]).all()
    assert buckets[:, 2].sum() == len(values)


def test_norms_and_products_over_all_variables():
    a = [RNG.normal(size=(3, 2)).astype("float32"), RNG.normal(size=4).astype("float32")]
    b = [RNG.normal(size=(3, 2)).astype("float32"), RNG.normal(size=4).astype("float32")]
    flat_a, flat_b = (np.concatenate([x.ravel() for x in g]) for g in (a, b))
    assert float(global_norm_at_any_scale([*a, None])) == pytest.approx(
        np.linalg.norm(flat_a), rel=1e-6
    )
    assert float(dot([*a, None], [*b, None])) == pytest.approx(flat_a @ flat_b, rel=1e-5)
    expected = flat_a @ flat_b / np.linalg.norm(flat_a) / np.linalg.norm(flat_b)
    assert float(cosine(a, b)) == pytest.approx(expected, rel=1e-5)
    assert float(cosine(a, a)) == pytest.approx(1.0, rel=1e-6)
    assert float(cosine(a, [np.zeros_like(x) for x in a])) == 0.0
    assert float(global_norm_at_any_scale([None])) == float(dot([None], [None])) == 0.0


def test_products_with_slices_are_those_of_the_dense():
    a, b = sparse(), sparse()
    other = tf.constant(RNG.normal(size=(6, 3)).astype("float32"))
    dense_a, dense_b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    for x, y, s, t in [
        (a, b, dense_a, dense_b),
        (a, other, dense_a, other),
        (other, b, other, dense_b),
    ]:
        assert float(dot([x], [y])) == pytest.approx(float(dot([s], [t])), rel=1e-5)
    assert float(cosine([a], [a])) == pytest.approx(1.0, rel=1e-6)
    assert float(global_norm_at_any_scale([a])) == pytest.approx(
        float(global_norm_at_any_scale([dense_a])), rel=1e-6
    )


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_norm_and_cosine_of_gradients_whose_squares_have_no_float32(size):
    a = [tf.constant([3.0 * size, 0.0]), None, tf.constant([[4.0 * size]])]
    b = [tf.constant([0.0, 7.0 * size]), None, tf.constant([[7.0 * size]])]
    assert float(global_norm_at_any_scale(a)) == pytest.approx(5.0 * size, rel=1e-6)
    assert float(cosine(a, b)) == pytest.approx(0.8 / np.sqrt(2), rel=1e-6)


def test_the_cosine_of_slices_with_repeated_rows():
    repeated = tf.IndexedSlices(
        tf.constant([[1.0], [2.0]]), tf.constant([1, 1]), tf.constant([3, 1])
    )
    other = tf.constant([[4.0], [1.0], [0.0]])
    assert float(cosine([repeated], [other])) == pytest.approx(1 / np.sqrt(17), rel=1e-6)
