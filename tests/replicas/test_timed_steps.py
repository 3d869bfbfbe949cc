"""Timed steps: the same training, and seconds where they belong."""

import contextlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import assert_close, features, small_model, targets, values

import phalanx
from phalanx.distributed.topology import replica_id_in_group
from phalanx.gradients.comm_timer import seconds_in
from phalanx.gradients.step_context import current_replica_batch
from phalanx.training.context import call_context, make_function, open_source
from phalanx.training.timed_step import TimedSteps

BATCH = 8


class SlowOnReplicaOne(keras.layers.Layer):
    """Computes for long on the second replica, so that the first waits in the all-reduce.

    Nothing in it has a state, which TensorFlow would put in order on its own.
    """

    def call(self, x):
        if (
            current_replica_batch() is None or replica_id_in_group() == 0
        ):  # while building, or on the other
            return x
        # Each row on its own: what combines rows would be an all-reduce, on this replica alone.
        work = tf.ones([1, 300, 300]) * x[:, :1, None] * 1e-9
        for _ in range(30):
            work = tf.linalg.matmul(work, work)
        return x + work[:, 0, :1]


@contextlib.contextmanager
def timed_steps(model, x, y, **options):
    with call_context(model) as stage:
        source = open_source(stage, "fit", 0, x, y, **{"batch_size": BATCH, **options})
        function = make_function(stage, "train", source)
        yield function, TimedSteps.of(function), source.open(0)


@pytest.mark.full
def test_timed_steps_train_equally(mirrored2):
    x, y = features(40), targets(40)
    with mirrored2.scope():
        plain, timed = small_model(), small_model()
    with timed_steps(plain, x, y) as (function, _, iterator):
        for _ in range(5):
            function.on_iterator(iterator, 1)
    with timed_steps(timed, x, y) as (_, steps, iterator):
        for i in range(5):
            steps.run(iterator, communication=i % 2 == 0)
    assert_close(values(timed.weights), values(plain.weights), tolerance=1e-6)


def test_waiting_for_another_replica_is_communication(mirrored2):
    with mirrored2.scope():
        model = keras.Sequential([keras.Input((4,)), SlowOnReplicaOne(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with timed_steps(model, features(40), targets(40)) as (_, steps, iterator):
        splits = []
        for i in range(5):
            steps.run(iterator, communication=True)
            assert steps.traced == (i == 0)
            splits.append(steps.last)
    # The mean over both replicas: one waits for nearly all of the step, the other hardly.
    waiting, busy = (sum(part) for part in zip(*map(of_replicas, splits[1:]), strict=True))
    assert 0.2 < waiting / (waiting + busy) < 0.6
    assert splits[-1].batch == BATCH


def of_replicas(split):
    return split.communication, split.busy


def test_steps_without_it_do_not_have_it_in_their_graph(mirrored2):
    with mirrored2.scope():
        model = small_model()
    with timed_steps(model, features(40), targets(40)) as (function, steps, iterator):
        steps.run(iterator, communication=True)
        function.on_iterator(iterator, 1)
        plain = function._one.get_concrete_function(iterator.element_spec).graph
    assert not [op for op in plain.get_operations() if "Timestamp" in op.type]
    assert steps.last.communication is not None


@pytest.mark.parametrize("eager", [False, True])
def test_waiting_for_data_is_input(eager):
    def rows():
        while True:
            time.sleep(0.15)  # far longer than a step takes
            yield features(BATCH), targets(BATCH)

    spec = (tf.TensorSpec((BATCH, 4)), tf.TensorSpec((BATCH, 1)))
    data = tf.data.Dataset.from_generator(rows, output_signature=spec)
    model = small_model(run_eagerly=eager)
    with timed_steps(model, data, None, batch_size=None) as (_, steps, iterator):
        waits = []
        for _ in range(12):
            steps.run(iterator, communication=True)
            waits.append(steps.last.input)
    if not eager:  # an eager step takes as long as a batch does to come
        assert max(waits[6:]) > 0.05
    assert steps.last.communication == 0.0, "one replica waits for no one"
    assert steps.last.busy > 0


def test_the_end_of_the_data_ends_a_timed_step():
    data = tf.data.Dataset.from_tensors((features(BATCH), targets(BATCH)))
    with timed_steps(small_model(), data, None, batch_size=None) as (_, steps, iterator):
        steps.run(iterator, communication=True)
        with pytest.raises(StopIteration):
            steps.run(iterator, communication=True)


def test_a_change_of_what_the_step_asks_traces_again(mirrored2):
    with mirrored2.scope():
        model = small_model()
    with timed_steps(model, features(40), targets(40)) as (function, steps, iterator):
        steps.run(iterator, communication=True)
        function.retrace()
        steps.run(iterator, communication=True)
        assert steps.traced


def test_overlapping_laps_count_once():
    assert seconds_in([(0, 1), (2, 4), (3, 5), (3.5, 4)]) == 4
    assert seconds_in([]) == 0


class Listener(keras.callbacks.Callback):
    every_n_seconds = 0.0
    wants_workers = True

    def __init__(self):
        super().__init__()
        self.reported = []

    def on_throughput(self, numbers, *, is_chief):
        self.reported.append(numbers)


@pytest.mark.parametrize("execution", [pytest.param(1, marks=pytest.mark.full), 3])
def test_a_listener_receives_of_every_step_after_the_warm_up(mirrored2, execution):
    with mirrored2.scope():
        model = small_model(steps_per_execution=execution)
    listener = Listener()
    x, y = features(100), targets(100)
    phalanx.fit(model, x, y, batch_size=BATCH, epochs=4, verbose=0, callbacks=[listener])
    reported = listener.reported
    assert reported[-1].step == 4 * 13
    # Numbers restart where the timed function is traced.
    assert 0 < sum(each.steps for each in reported) <= 4 * 13 - 3
    assert all(each.samples <= 8 * each.steps for each in reported)
    assert any(each.time_fractions["communication"] for each in reported)
    for each in reported:
        known = [share for share in each.time_fractions.values() if share is not None]
        assert sum(known) == pytest.approx(1.0)
        assert len(each.workers) == 1
    assert np.isfinite([each.samples_per_second for each in reported]).all()


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x)) * tf.random.uniform([])


def noisy(**compiled):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    return model


@pytest.mark.parametrize("execution", [pytest.param(1, marks=pytest.mark.full), 4])
def test_timed_steps_draw_the_random_numbers_of_one_device(mirrored2, execution):
    """Nine steps: the last execution of four has one step."""
    x, y = features(72), targets(72)
    options = {"batch_size": 8, "epochs": 3, "verbose": 0}
    plain = noisy(steps_per_execution=execution).fit(x, y, **options).history["loss"]
    alone = noisy(steps_per_execution=execution)
    history = phalanx.fit(alone, x, y, callbacks=[Listener()], **options).history["loss"]
    assert history == plain
    with mirrored2.scope():
        model = noisy(steps_per_execution=execution)
    history = phalanx.fit(model, x, y, callbacks=[Listener()], **options).history["loss"]
    assert history == pytest.approx(plain, rel=1e-5)
