"""The rows of all replicas travel together, whatever their numbers and their dtypes are."""

import numpy as np
import pytest
import tensorflow as tf

from phalanx.gradients import gathered_batch
from phalanx.gradients.gathered_batch import gather_rows

ROWS = {
    "floats": [np.arange(6, dtype="float32").reshape(3, 2), np.ones((1, 2), "float32")],
    "flags": [np.array([True, False, True]), np.array([True])],
    "ids": [np.array([[5], [7]], "int32"), np.zeros((0, 1), "int32")],
    "texts": [np.array([b"", "\u00e9t\u00e9 ".encode() * 9, b"a\0b"], "O"), np.array([b"z"], "O")],
    "more": [np.ones((1, 1, 3), "float32"), np.full((4, 1, 3), 2, "float32")],
}


@pytest.fixture
def exchanged(monkeypatch):
    """What is exchanged, for each replica, by name."""
    found = []
    original = gathered_batch.gather_equal

    def noting(tensor, *, what):
        found.append(what)
        return original(tensor, what=what)

    monkeypatch.setattr(gathered_batch, "gather_equal", noting)
    return found


def on_replicas(strategy, function):
    """`function(replica)` on each of two replicas, in a graph."""

    def on_replica():
        context = tf.distribute.get_replica_context()
        return function(int(tf.get_static_value(context.replica_id_in_sync_group)))

    outputs = tf.function(lambda: strategy.run(on_replica), autograph=False)()
    return tf.nest.map_structure(strategy.experimental_local_results, outputs)


def of_any_number(rows):
    return tf.constant(rows)[: tf.random.uniform((), 100, 101, tf.int32)]


def test_all_have_the_rows_of_all(exchanged, mirrored2):
    def gather(replica):
        return gather_rows([of_any_number(parts[replica]) for parts in ROWS.values()])

    for parts, wholes in zip(ROWS.values(), on_replicas(mirrored2, gather), strict=True):
        for whole in wholes:
            assert whole.dtype == tf.as_dtype(parts[0].dtype)
            np.testing.assert_array_equal(whole, np.concatenate(parts))
    of_one_replica = ["numbers of rows", "rows", "rows", "the longest string"]
    assert sorted(exchanged) == sorted(of_one_replica * 2)


def test_gradients_come_back_to_the_rows_of_a_replica(mirrored2):
    def gradients(replica):
        floats = [of_any_number(ROWS[name][replica]) for name in ("floats", "more")]
        flags = of_any_number(ROWS["flags"][replica])
        with tf.GradientTape() as tape:
            tape.watch(floats)
            one, _, other = gather_rows([floats[0], flags, floats[1]])
            loss = (replica + 1.0) * (tf.reduce_sum(one**2) + tf.reduce_sum(other))
        return tape.gradient(loss, floats)

    parts = on_replicas(mirrored2, gradients)
    for name, found in zip(("floats", "more"), parts, strict=True):
        for part, gradient in zip(ROWS[name], found, strict=True):
            expected = 3.0 * (2 * part if name == "floats" else np.ones_like(part))
            np.testing.assert_allclose(gradient, expected)
