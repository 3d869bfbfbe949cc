"""The state of a training as named arrays and JSON: what goes in comes out."""

import json
import random

import hypothesis.extra.numpy as arrays_of
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.checkpoint.callback_state import CallbackStates
from phalanx.checkpoint.replica_values import assign_local
from phalanx.checkpoint.rng_state import read_rng_state, write_rng_state
from phalanx.checkpoint.serialization import NotSerializableError, decode, encode
from phalanx.checkpoint.variable_names import model_variables, optimizer_variables
from phalanx.distributed.topology import ReplicaTopology
from phalanx.keras_compat import atomic_writes
from phalanx.keras_compat.callback_adapters import truncate_after

numbers = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text()
values = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_plain_values_come_back_as_they_were(value):
    arrays = {}
    document = json.loads(json.dumps(encode(value, arrays, "x")))
    assert decode(document, arrays) == value
    assert repr(decode(document, arrays)) == repr(value)


def test_arrays_and_numbers_of_numpy_come_back_with_their_dtype():
    arrays = {}
    value = {"best": [np.ones((2, 3), "float32"), np.zeros(0)], "rate": np.float32(0.1)}
    back = decode(json.loads(json.dumps(encode(value, arrays, "x"))), arrays)
    assert back["rate"].dtype == np.float32
    assert back["rate"] == np.float32(0.1)
    np.testing.assert_array_equal(back["best"][0], value["best"][0])
    assert back["best"][1].shape == (0,)
    assert set(arrays) == {"x/best/0", "x/best/1"}


keys = st.text(alphabet="1ab/", max_size=3) | st.integers(0, 2) | st.booleans() | st.none()
numpy_values = st.sampled_from(["?", "i1", "u2", "i8", "f2", "f4", "f8"]).flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, max_side=2))
)
nested = st.recursive(
    numpy_values | numpy_values.map(lambda array: array.flat[0]) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=8,
)


def described(value):
    """The value with the types of all that it holds, as text."""
    if isinstance(value, dict):
        pairs = [(described(k), described(v)) for k, v in value.items()]
        return ("dict", pairs)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [described(each) for each in value])
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return (type(value).__name__, repr(value))


@given(nested)
def test_arrays_of_any_nesting_come_back_with_types_and_keys(value):
    arrays = {}
    document = json.loads(json.dumps(encode(value, arrays, "x")))
    assert described(decode(document, arrays)) == described(value)


@pytest.mark.parametrize(
    "value",
    [
        {1: np.zeros(2), "1": np.ones(2)},
        {"a/b": np.zeros(2), "a": {"b": np.ones(2)}},
        {None: np.zeros(2), "None": np.ones(2), True: np.full(2, 2.0), "True": np.full(2, 3.0)},
    ],
)
def test_names_of_arrays_do_not_collide(value):
    states = CallbackStates([callback := Reporting()])
    callback.get_state = lambda: {"count": value}
    document, arrays = states.read()
    callback.set_state = lambda state: received.append(state["count"])
    received = []
    states.write(json.loads(json.dumps(document)), arrays)
    assert described(received[0]) == described(value)


@pytest.mark.parametrize(
    "value",
    [
        object(), {"a": [open]}, np.array(["text"]), {1, 2}, np.longdouble(1), np.complex64(1),
        np.zeros(1, np.longdouble),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(NotSerializableError):
        encode(value, {}, "x")


class Counting(keras.callbacks.Callback):
    def __init__(self, patience):
        super().__init__()
        self.patience = patience
        self.seen = 0
        self.file = open


class Reporting(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.secret = object()
        self.count = 0

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"] * 10


def moved(before, after):
    """What `after` gets from `before`, by way of JSON."""
    document, arrays = before.read()
    after.write(json.loads(json.dumps(document)), arrays)


def test_what_changed_is_state_and_what_was_asked_is_not():
    old, new = Counting(patience=3), Counting(patience=9)
    before, after = CallbackStates([old]), CallbackStates([new])
    old.seen = 5
    old.later = [np.float32(1.5)]
    moved(before, after)
    assert (new.seen, new.patience, new.later) == (5, 9, [np.float32(1.5)])


def test_a_callback_may_report_its_state_itself():
    old, new = Reporting(), Reporting()
    before, after = CallbackStates([old]), CallbackStates([new])
    old.count = 4
    moved(before, after)
    assert new.count == 40


def test_callbacks_are_distinguished_by_class_and_number():
    old = [Counting(1), Reporting(), Counting(1)]
    new = [Counting(1), Counting(1)]
    before, after = CallbackStates(old), CallbackStates(new)
    old[0].seen, old[2].seen = 1, 2
    moved(before, after)
    assert [c.seen for c in new] == [1, 2]


def test_chance_continues_where_it_was():
    keras.utils.set_random_seed(1)
    keras.random.normal([1])
    np.random.normal()  # leaves a second one for later
    random.gauss(0, 1)
    state = read_rng_state()

    def drawn():
        return (
            float(np.random.normal()),
            float(np.random.rand()),
            random.gauss(0, 1),
            random.random(),
            float(keras.random.normal([1])[0]),
        )

    first = drawn()
    assert drawn() != first
    write_rng_state(state)
    assert drawn() == first


def test_names_do_not_depend_on_how_many_models_came_before():
    def build():
        layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    one, other = build(), build()
    assert one.variables[0].path != other.variables[0].path
    assert list(model_variables(one)) == list(model_variables(other))
    assert list(model_variables(one))[:2] == ["model/0/kernel", "model/1/bias"]
    held = optimizer_variables(one)
    assert list(held) == list(optimizer_variables(other))
    assert len({id(v) for v in held.values()}) == len(held) >= 8


def test_a_csv_file_keeps_the_epochs_before(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("epoch,loss\n0,3.0\n1,2.0\n2,1.0\n")
    callback = keras.callbacks.CSVLogger(str(file))
    truncate_after(callback, 2)
    assert file.read_text() == "epoch,loss\n0,3.0\n1,2.0\n"
    callback.on_train_begin()
    callback.on_epoch_end(2, {"loss": 1.5})
    callback.on_train_end()
    assert file.read_text().splitlines()[:3] == ["epoch,loss", "0,3.0", "1,2.0"]
    assert file.read_text().splitlines()[3].startswith("2,1.5")


def test_a_csv_file_that_cannot_be_cut_stays_whole(tmp_path, monkeypatch):
    file = tmp_path / "log.csv"
    file.write_text(before := "epoch,loss\n0,3.0\n1,2.0\n")

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(atomic_writes, "move_durably", fail)
    with pytest.raises(OSError, match="full"):
        truncate_after(keras.callbacks.CSVLogger(str(file)), 1)
    assert [path.read_text() for path in tmp_path.iterdir()] == [before]


def test_a_csv_file_that_is_not_there_is_not_made(tmp_path):
    callback = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    truncate_after(callback, 2)
    assert not callback.append
    assert not (tmp_path / "log.csv").exists()


@pytest.mark.parametrize(
    ("aggregation", "dtype", "expected"),
    [
        ("sum", "float32", [[5.0, 7.0], [0.0, 0.0], [0.0, 0.0]]),
        ("mean", "float32", [[2.5, 3.5]] * 3),
        ("none", "int32", [[1, 2]] * 3),
    ],
)
def test_other_numbers_of_replicas_share_out_what_each_had(aggregation, dtype, expected):
    arrays = {"local/0/v": np.array([1, 2], dtype), "local/1/v": np.array([4, 5], dtype)}
    for replica in range(3):
        variable = keras.Variable(np.zeros(2, dtype), dtype=dtype, aggregation=aggregation)
        topology = ReplicaTopology(first=replica, local=1, total=3)
        assign_local({"v": variable}, arrays, topology)
        assert variable.numpy().tolist() == expected[replica]
