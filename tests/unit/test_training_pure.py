"""What training computes without a strategy: messages, bytes, and the order of rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.distributed import host_collectives as exchange
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.errors import TrainingError
from phalanx.training import context, predict

stable = settings(derandomize=True, deadline=None, max_examples=60)

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "S7", "U5",
]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 4), (2, 1, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_survive_the_way_as_words(dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    (back,) = exchange.unpack_bytes(exchange.pack_bytes([array]))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert (back == array).all()


@pytest.mark.parametrize("number", [0, 1, 2, 11])
def test_any_number_of_arrays_comes_back_in_order(number):
    arrays = [np.full(i, i, "int16") for i in range(number)]
    words = exchange.pack_bytes(arrays)
    assert words.dtype == np.int64
    back = exchange.unpack_bytes(words)
    assert [a.tolist() for a in back] == [a.tolist() for a in arrays]


def test_what_follows_the_words_is_ignored():
    words = exchange.pack_bytes([np.arange(3)])
    (back,) = exchange.unpack_bytes(np.concatenate([words, [1, 2, 3]]))
    assert back.tolist() == [0, 1, 2]


def test_special_numbers_come_back_bit_by_bit():
    array = np.array([np.nan, np.inf, -0.0, np.finfo("float32").tiny], "float32")
    (back,) = exchange.unpack_bytes(exchange.pack_bytes([array]))
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("rows", [[], ["a"], ["text", "ragged length", ""]])
def test_strings_as_tensorflow_gives_them_come_back(rows):
    array = tf.constant([r.encode() for r in rows], tf.string).numpy()
    (back,) = exchange.unpack_bytes(exchange.pack_bytes([array]))
    assert [bytes(r) for r in back] == [r.encode() for r in rows]


def test_strings_keep_their_type_and_the_zeros_at_their_end():
    array = tf.constant([[b"a\0\0", b""], ["\u00e9".encode(), b"\0"]]).numpy()
    arrays = [array, np.arange(3), tf.constant([b"z"]).numpy()]
    text, numbers, last = exchange.unpack_bytes(exchange.pack_bytes(arrays))
    assert (text.dtype, text.shape) == (array.dtype, array.shape) == (object, (2, 2))
    assert text.tolist() == array.tolist()
    assert (numbers.tolist(), last.tolist()) == ([0, 1, 2], [b"z"])


def test_bfloat16_comes_back():
    array = tf.constant([1.5, -2.0], tf.bfloat16).numpy()
    (back,) = exchange.unpack_bytes(exchange.pack_bytes([array]))
    assert back.dtype == array.dtype
    assert back.astype("float32").tolist() == [1.5, -2.0]


def test_alone_nothing_is_gathered():
    arrays = [np.arange(2)]
    topology = ReplicaTopology(first=0, local=3, total=3)
    assert exchange.all_gather_arrays(None, topology, arrays) == [arrays]


@stable
@given(
    totals=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    workers=st.integers(1, 4),
    local=st.integers(1, 3),
)
def test_rows_of_workers_interleave_to_the_order_of_the_data(totals, workers, local):
    topology = ReplicaTopology(first=0, local=local, total=workers * local)
    by_worker = [[] for _ in range(workers)]
    counts = [[] for _ in totals]
    for batch, total in enumerate(totals):
        for replica in range(topology.total):
            start, count = rows_of(replica, topology.total, total)
            rows = [(batch, start + i) for i in range(count)]
            by_worker[replica // local].append(np.array(rows, int).reshape(-1, 2))
            counts[batch].append(count)
    gathered = [predict._unpacked(*predict._packed(arrays)) for arrays in by_worker]
    batches = predict._batches(gathered, counts, local)
    expected = [[[batch, row] for row in range(total)] for batch, total in enumerate(totals)]
    assert [batch.tolist() for batch in batches] == expected


def test_rows_that_only_stand_in_are_cut_from_every_output():
    output = {"a": tf.constant([[1], [2], [3]]), "b": (tf.constant([1, 2, 3]),)}
    kept = predict._without_stand_ins(tf.constant(2), output, several=True)
    assert kept["a"].tolist() == [[1], [2], [3]]
    assert kept["b"][0].tolist() == [1, 2, 3]
    empty = predict._without_stand_ins(tf.constant(0), output, several=True)
    assert empty["a"].shape == (0, 1)


def test_an_output_that_cannot_be_gathered_is_named():
    ragged = tf.ragged.constant([[1], [2, 3]])
    with pytest.raises(TrainingError, match=r"RaggedTensor.*--workers 1"):
        predict._without_stand_ins(tf.constant(1), ragged, several=True)


def test_a_difference_in_numbers_is_shown_by_worker():
    text = context._explain("fit", "number of batches", [4, 5, -1], 4)
    assert text.startswith("fit needs the same number of batches on every worker; found ")
    assert "worker 0: 4, worker 1: 5, worker 2: unknown" in text
    assert "Give every worker the same global data" in text


def test_a_difference_in_an_unknown_number_is_shown_by_worker():
    assert "worker 0: unknown, worker 1: 5" in context._explain("fit", "steps", [-1, 5], None)


def test_a_difference_in_kind_names_the_odd_workers_and_what_is_here():
    text = context._explain("evaluate", "model", [9, 8, 9, 7], [("kernel", (3, 4))])
    assert "worker(s) [1, 3] differ from worker 0" in text
    assert "here it is [('kernel', (3, 4))]" in text


def test_alone_there_is_nothing_to_agree_on():
    assert (
        context.assert_same_on_all_workers(None, ReplicaTopology(), "fit", {"a": object()}, 7) == 7
    )


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (None, None),
        (3, np.int64(3)),
        ([("a", (1, 2))], [("a", (1, 2))]),
        (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3])),
    ],
)
def test_equal_requests_are_equal_numbers(one, same):
    assert context._as_integer(one) == context._as_integer(same)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, 0),
        ("fit", "evaluate"),
        (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 4])),
        (tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)),
    ],
)
def test_unequal_requests_are_unequal_numbers(one, other):
    assert context._as_integer(one) != context._as_integer(other)


@stable
@given(st.text("aä'\n", max_size=9))
def test_a_request_fits_an_int64_whatever_it_is(request):
    assert 0 <= context._as_integer([request]) < 2**63


def test_the_structures_of_keras_trees_are_kept():
    output = [tf.constant([1]), {"z": tf.constant([2]), "a": tf.constant([3])}]
    kept = predict._without_stand_ins(tf.constant(1), output, several=True)
    assert [a.tolist() for a in keras.tree.flatten(kept)] == [[1], [3], [2]]
