"""What the flight recorder knows of the steps of two replicas: batches, their form, their end."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.launcher.worker_diagnosis import batch_spec
from phalanx.monitoring.flight_format import DIMENSIONS
from phalanx.monitoring.flight_reader import read_flight
from phalanx.monitoring.flight_recorder import flight
from phalanx.testing import run_single
from phalanx.training.batch_arrivals import GraphBatchProbe

FORM = "x float32[samples, 2], y float32[samples, 1]"
ROWS = 22  # in batches of 8: the last has 6


@pytest.fixture
def steps(tmp_path, mirrored2):
    """Train, and give the events of the steps."""
    file = tmp_path / "worker-0.flight"
    flight.open(file, rank=0, attempt=0, workers=1)

    def run(data, *layers, kind="train", **options):
        with mirrored2.scope():
            model = keras.Sequential([*(layers or [keras.Input((2,))]), keras.layers.Dense(1)])
            model.compile("sgd", "mse", **options)
        phalanx.fit(model, data, epochs=1, verbose=0)
        return [event for event in read_flight(file).events if event.kind == kind]

    yield run
    flight.close()


def dataset():
    x = np.ones((ROWS, 2), "float32")
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)


@pytest.fixture(autouse=True)
def asked_every_time(monkeypatch):
    monkeypatch.setattr("phalanx.monitoring.flight_recorder._REST", -1)


@pytest.mark.parametrize("eager", [False, True])
def test_each_step_reports_its_batch(steps, eager):
    events = steps(dataset(), run_eagerly=eager)
    assert [event.step for event in events] == [1, 2, 3]
    assert {event.how for event in events} == {"done"}
    assert [event.done for event in events] == [1, 1, 1]
    for event in events:
        assert event.begin - 1000 <= event.came <= event.end
    assert {batch_spec(event.batch) for event in events} == {FORM}


def test_of_steps_in_one_call_the_last_batch_is_reported(steps):
    first, second = steps(dataset(), steps_per_execution=2)
    assert (first.step, first.steps, first.done) == (1, 2, 2)
    assert (second.step, second.done) == (3, 1)
    assert batch_spec(second.batch) == FORM


def test_a_batch_that_is_waited_for_is_reported_when_it_came(steps, tmp_path):
    file, given = tmp_path / "worker-0.flight", []

    def give(_):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            events = read_flight(file).events
            if sum(event.kind == "train" for event in events) > len(given):
                break  # The step that will take it has started.
            time.sleep(0.01)
        given.append(time.time_ns())
        return np.ones([8, 2], "float32")

    def batch(number):
        x = tf.numpy_function(give, [number], tf.float32)
        return tf.ensure_shape(x, [8, 2]), tf.ones([8, 1])

    events = steps(tf.data.Dataset.range(3).map(batch))
    assert len(given) == 3
    for event, moment in zip(events, given, strict=True):
        assert event.came >= moment - 1000


@pytest.mark.parametrize("together", [1, 3])
def test_dimensions_that_vary_are_reported(together, steps):

    def batch(length):
        rows = 8 + 0 * length  # which TensorFlow does not know beforehand either
        return tf.ones([rows, length, 2]), tf.ones([rows, 1])

    batches = tf.data.Dataset.range(3, 6).map(batch)
    layers = [keras.Input((None, 2)), keras.layers.GlobalAveragePooling1D()]
    events = steps(batches, *layers, steps_per_execution=together)
    expected = [(1, "3"), (1, "4"), (1, "5")] if together == 1 else [(3, "5")]
    assert [(event.done, batch_spec(event.batch)) for event in events] == [
        (done, f"x float32[samples, {length}, 2], y float32[samples, 1]")
        for done, length in expected
    ]


def test_data_whose_end_no_one_knows(steps):
    unknown = dataset().filter(lambda x, y: True)
    events = steps(unknown)
    assert [event.how for event in events] == ["done", "done", "done", "out of data"]
    assert events[-1].done == 0


def noting(arrivals, number, rank=1):
    """A function that notes one batch, any size of each of its dimensions."""

    @tf.function(input_signature=[tf.TensorSpec([None] * rank), tf.TensorSpec([], tf.int32)])
    def take(x, tensor):
        arrivals.note((x,), tensor if number is None else number)
        return x

    return lambda number=1: take(tf.ones([2] * rank), number)


def test_before_any_batch_none_has_come():
    arrivals = GraphBatchProbe()
    assert (arrivals.last().batches, arrivals.last().when) == (0, 0)
    noting(arrivals, None)(7)
    assert arrivals.last().batches == 7


def test_what_was_traced_before_still_reports():
    arrivals = GraphBatchProbe()
    first, second = noting(arrivals, 1), noting(arrivals, 1)
    moments = []
    for take in (first, second, first):
        take()
        moments.append(arrivals.last().when)
    assert moments == sorted(set(moments))


def test_no_more_dimensions_than_there_is_room_for():
    arrivals = GraphBatchProbe()
    noting(arrivals, 1, rank=DIMENSIONS + 3)()
    assert arrivals.last().dimensions == (2,) * DIMENSIONS


def test_a_step_that_must_be_deterministic_has_its_times_too():
    """TensorFlow refuses `tf.timestamp` then, and Keras's page on reproducible runs asks for it."""

    def function():
        import time

        import keras
        import numpy as np
        import tensorflow as tf

        import phalanx
        from phalanx.gradients.comm_timer import now

        keras.utils.set_random_seed(1)
        tf.config.experimental.enable_op_determinism()
        before = time.time()
        read = tf.function(now)
        times = [float(read()), float(read())]
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        pace = phalanx.callbacks.ThroughputMonitor(every_n_seconds=0.001, log=False)
        x = np.ones((32, 4), "float32")
        history = phalanx.fit(model, x, x[:, :1], callbacks=[pace], verbose=0).history
        return before, times, time.time(), history

    before, times, after, history = run_single(function)
    assert before <= times[0] <= times[1] <= after
    assert np.isfinite(history["loss"][0])
