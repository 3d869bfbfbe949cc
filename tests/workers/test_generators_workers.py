"""Python generators: each step has rows of one batch, whatever the speed of each worker."""

import itertools
import os
import random
import time

import numpy as np
import pytest
from callback_cases import small_model

from phalanx.cluster.spec import WorkerSpec
from phalanx.testing import run_single

ROWS = 6


def batches(longest):
    """Rows numbered from 0, each batch made in another time in each process."""
    clock = random.Random(os.getpid())
    for number in itertools.count():
        time.sleep(clock.uniform(0, longest))
        x = np.arange(ROWS * number, ROWS * (number + 1), dtype="float32").reshape(-1, 1)
        yield x, np.zeros_like(x)


def rows_of_each_step():
    """Which rows each step of several calls has on this worker, by call."""
    import keras
    import tensorflow as tf

    import phalanx

    seen = []

    class Recording(keras.layers.Layer):
        def call(self, x, training=False):
            kind = "fit" if training else "other"

            def record(rows):
                seen.append((kind, rows[:, 0].astype(int).tolist()))
                return rows

            same = tf.numpy_function(record, [x], tf.float32)
            return tf.ensure_shape(same, x.shape)

        def compute_output_spec(self, x, training=False):
            return keras.KerasTensor(x.shape, x.dtype)

    class StopsAfter(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.stop_training = True

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise LookupError

    model = keras.Sequential([keras.Input((1,)), Recording(), keras.layers.Dense(1)])
    train, validate = batches(0.02), batches(0.02)
    by_call = {}

    def note(call, function):
        seen.clear()
        function()
        by_call[call] = list(seen)

    def fit(**options):
        phalanx.fit(model, train, verbose=0, **options)

    def fails():
        with pytest.raises(LookupError):
            fit(steps_per_epoch=4, callbacks=[Fails()])

    validation = {"validation_data": validate, "validation_steps": 4}
    for chunk in (1, 2):
        model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=chunk)
        note(f"fit, {chunk}", lambda: fit(steps_per_epoch=3, epochs=3, **validation))
        note(f"again, {chunk}", lambda: fit(steps_per_epoch=4))
        note(f"one step, {chunk}", lambda: fit(steps_per_epoch=1))
        if chunk == 1:  # else the batch after which callbacks are called depends on what is ready
            note("stopped", lambda: fit(steps_per_epoch=5, callbacks=[StopsAfter()]))
            note("failed", fails)
        note(f"evaluate, {chunk}", lambda: phalanx.evaluate(model, train, steps=3, verbose=0))
        note(f"predict, {chunk}", lambda: phalanx.predict(model, train, steps=4, verbose=0))
    return by_call


@pytest.fixture(scope="module")
def alone():
    return run_single(rows_of_each_step, deadline=600)


def test_one_process_trains_on_each_batch_once(alone):
    def trained(call):
        return [rows[0] // ROWS for kind, rows in alone[call] if kind == "fit"]

    def validated(call):
        return [rows[0] // ROWS for kind, rows in alone[call] if kind != "fit"]

    assert trained("fit, 1") == list(range(9))
    assert validated("fit, 1") == [0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 6, 7]
    assert trained("again, 1") == [9, 10, 11, 12]
    assert trained("one step, 1") == [13]
    assert trained("stopped") == [14, 15]
    assert trained("failed") == [16, 17, 18]
    assert validated("evaluate, 1") == [19, 20, 21]
    assert validated("predict, 1") == [22, 23, 24, 25]
    assert trained("fit, 2") == list(range(26, 35))


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_workers_train_on_rows_of_the_batches_that_one_process_trains_on(workers, alone, pool):
    of_each = pool(workers).run(rows_of_each_step, deadline=600)
    for call, expected in alone.items():
        steps = [
            (shares[0][0], [row for _, rows in shares for row in rows])
            for shares in zip(*(found[call] for found in of_each), strict=True)
        ]
        assert steps == expected, call


def test_generators_that_differ_between_workers_are_refused(pool):
    def function():
        import phalanx
        from phalanx.errors import WorkerMismatchError

        rank = WorkerSpec.from_environment(os.environ).rank

        def unseeded():
            chance = np.random.default_rng(rank)
            while True:
                yield chance.normal(size=(8, 4)), np.zeros((8, 1))

        def rounded():
            while True:
                yield np.full((8, 4), 1.0 + 1e-7 * rank), np.zeros((8, 1))

        phalanx.fit(small_model(), rounded(), steps_per_epoch=2, verbose=0)
        with pytest.raises(WorkerMismatchError) as caught:
            phalanx.fit(small_model(), unseeded(), steps_per_epoch=2, verbose=0)
        return str(caught.value)

    for output in pool(2).run(function, deadline=600):
        assert "fit needs the same batches from the generator of every worker" in output
        assert "worker(s) [1] differ" in output
