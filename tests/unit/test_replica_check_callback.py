"""Comparing replicas: fingerprints, differences, options."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from phalanx.callbacks import ReplicaConsistencyCheck
from phalanx.callbacks.replica_check import find_replica_check
from phalanx.checkpoint import checksum
from phalanx.errors import ConfigurationError
from phalanx.training.replica_consistency import _outliers, _sums_of_chunks, difference


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64",
                                   "uint8", "int8", "bool"])  # fmt: skip
def test_one_entry_changes_the_fingerprint(dtype):
    values = tf.cast(tf.reshape(tf.range(24) % 2, [4, 6]), dtype)
    same, other = tf.identity(values), tf.cast(tf.one_hot(3, 24), dtype)
    assert int(checksum.checksum(values)) == int(checksum.checksum(same))
    assert int(checksum.checksum(values)) != int(checksum.checksum(tf.reshape(other, [4, 6])))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9), st.data())
def test_any_change_of_one_entry_changes_the_fingerprint(words, data):
    place = data.draw(st.integers(0, len(words) - 1))
    near = st.sampled_from([-words[place] % 2**32, words[place] ^ 2**31])
    entry = data.draw(st.integers(0, 2**32 - 1) | near)
    other = [*words[:place], entry, *words[place + 1 :]]
    values, changed = (np.array(each, np.uint32).view(np.float32) for each in (words, other))
    folded, other_fold = (int(checksum.checksum(tf.constant(each))) for each in (values, changed))
    assert (folded == other_fold) == (words == other)


def test_changes_that_cancel_in_a_sum_are_seen():
    one, other = tf.constant([1.0, 2.0]), tf.constant([-1.0, -2.0])
    moved = tf.constant([1.5, 1.5])
    assert len({int(checksum.checksum(v)) for v in (one, other, moved)}) == 3


def test_a_large_variable_is_folded_in_pieces(monkeypatch):
    values = tf.random.stateless_normal([1000], (1, 2))
    whole = int(checksum.checksum(values))
    monkeypatch.setattr(checksum, "_CHUNK", 64)
    assert int(checksum.checksum(values)) == whole


def test_the_order_of_variables_counts():
    folded = np.array([[1, 2], [2, 1], [1, 2]], np.int64)
    first, second, third = checksum.combine_checksums(folded)
    assert first == third != second


def test_copies_of_replicas_are_rows(mirrored2):
    with mirrored2.scope():
        variables = [keras.Variable([1.0, 2.0]), keras.Variable([3.0])]
    equally = checksum.checksum_components(variables).numpy()
    assert equally.shape == (2, 2)
    assert (equally[0] == equally[1]).all()
    variables[1].value.values[1].assign([4.0])
    unlike = checksum.checksum_components(variables).numpy()
    assert (unlike[0] == unlike[1]).tolist() == [True, False]


def test_a_difference_is_reported_with_place_and_size():
    one = np.array([[1.0, -4.0], [2.0, 3.0]], np.float32)
    other = one.copy()
    other[1, 0], other[0, 0] = 2.5, 1.25
    found = difference(one, other)
    assert (found.largest, found.entries, found.size) == (0.5, 2, 4)
    assert (found.index, found.values, found.share) == ((1, 0), (2.0, 2.5), 0.125)
    other[0, 1] = np.nan
    assert difference(one, other).largest == np.inf
    assert difference(np.float32(np.nan), np.float32(np.nan)).entries == 0


def test_who_is_odd():
    assert _outliers([7, 7, 8, 7]) == [2]
    assert _outliers([8, 7, 7]) == [0]
    assert _outliers([7, 8]) == [1]


def test_chunks_of_a_large_variable_are_compared_apart():
    flat = np.zeros(2**20 + 8, np.float32)
    changed = flat.copy()
    changed[-1] = 1.0
    unlike = _sums_of_chunks(flat) != _sums_of_chunks(changed)
    assert unlike.tolist() == [False, True]


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"every_steps": 0}, "every_steps must be an integer of at least 1; found 0"),
        ({"on_difference": "stop"}, "on_difference must be 'warn' or 'raise'; found 'stop'"),
        ({"max_overhead": 1.0}, "max_overhead must be a number from 0 to below 1; found 1.0"),
        ({"tolerance": "1"}, "tolerance must be a number from 0 to below 1; found '1'"),
    ],
)
def test_bad_options_are_refused(options, output):
    with pytest.raises(ConfigurationError, match=output):
        ReplicaConsistencyCheck(**options)


def test_one_check_is_enough():
    check = ReplicaConsistencyCheck(every_steps=None)
    assert find_replica_check([check]) is check
    assert find_replica_check([]).every_steps == 100
    with pytest.raises(ConfigurationError, match="found 2: ReplicaConsistencyCheck"):
        find_replica_check([check, check])


def test_mirrored_replicas_of_one_process_are_compared(mirrored2, caplog):
    """Two replicas in one process: one's copy is changed in the middle of an epoch."""

    class Plant(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.layers[0].bias.value.values[1].assign([0.5])

    import phalanx

    log = logging.getLogger("phalanx.training.replica_consistency")
    log.addHandler(caplog.handler)
    try:
        with mirrored2.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])
            model.compile("sgd", "mse")
        x = np.ones((16, 2), np.float32)
        check = ReplicaConsistencyCheck(every_steps=2, max_overhead=None)
        phalanx.fit(model, x, x[:, :1], batch_size=4, verbose=0, callbacks=[Plant(), check])
    finally:
        log.removeHandler(caplog.handler)
    output = list({r.getMessage() for r in caplog.records if "Replicas that" in r.getMessage()})
    assert len(output) == 1
    assert "differ after step 4: " in output[0]
    assert "head/bias on replica 1 is not that of replica 0" in output[0]
