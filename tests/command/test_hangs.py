"""Runs that would wait forever, with the real command: they end, and say who is where."""

import re

import pytest

TRAIN = """
import os, sys, time
import keras
import numpy as np
import tensorflow as tf

rank = tf.distribute.get_strategy().cluster_resolver.task_id

class Own(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and batch == 2:
            {act}

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((16, 2), "float32")
model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[Own()])
print("trained", flush=True)
"""


def test_a_callback_that_never_returns_is_named(command):
    script = command.script(TRAIN.format(act="time.sleep(1000)"))
    finished = command.run("--workers", "2", "--hang-timeout", "12", script, deadline=600)
    assert finished.code == 124
    first = r"The run makes no progress: worker 1 never reached step 4: in a callback for \d+ s; "
    assert re.search(first + r"the other waits in the all-reduce\.", finished.err), finished.err
    assert "Worker 1: in a callback after step 3 of epoch 0 for " in finished.err
    assert re.search(r"it is at .*train\.py:\d+, in on_train_batch_end", finished.err)
    assert "Worker 0: in a step after step 3 of epoch 0" in finished.err


@pytest.mark.full
def test_a_worker_that_leaves_training_early_is_named(command):
    lines = TRAIN.format(act="raise InterruptedError").splitlines()
    fit = next(i for i, line in enumerate(lines) if line.startswith("model.fit"))
    lines[fit] = f"try:\n    {lines[fit]}\nexcept InterruptedError:\n    time.sleep(1000)"
    script = command.script("\n".join(lines))
    finished = command.run("--workers", "2", "--hang-timeout", "20", script, deadline=600)
    assert finished.code == 124
    assert "The run makes no progress: worker 1 is outside of training" in finished.err


@pytest.mark.full
def test_a_callback_that_raises_on_one_worker_is_the_root_cause(command):
    script = command.script(TRAIN.format(act="raise LookupError('nothing on worker one')"))
    finished = command.run("--workers", "2", script, deadline=600)
    assert finished.code == 1
    assert "Worker 1 failed first: LookupError: nothing on worker one" in finished.err
    assert "train.py" in finished.err


@pytest.mark.full
def test_a_run_that_continues_is_left_alone(command):
    script = command.script(TRAIN.format(act="time.sleep(3)"))
    finished = command.run("--workers", "2", "--hang-timeout", "30", script, deadline=600)
    assert finished.code == 0
    assert "trained" in finished.out


@pytest.mark.full
def test_a_run_that_made_no_progress_is_started_again(command):
    act = "first = not os.path.exists('stood'); open('stood', 'a').close(); time.sleep(1e3 * first)"
    script = command.script(TRAIN.format(act=act))
    requested = ("--workers", "2", "--hang-timeout", "20", "--max-restarts", "1")
    finished = command.run(*requested, script, deadline=600)
    assert finished.code == 0
    assert "it made no progress; restart 1 of 1" in finished.err
    assert "trained" in finished.out


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_data_that_does_not_come_is_named_and_warned_of(command):
    source = """
import time
import keras
import tensorflow as tf

rank = tf.distribute.get_strategy().cluster_resolver.task_id

def rows():
    for number in range(100_000):
        if rank == 1 and number == 800:
            time.sleep(1000)
        time.sleep(0.025)
        yield [1.0, 2.0], [3.0]

shapes = (tf.TensorSpec((2,)), tf.TensorSpec((1,)))
data = tf.data.Dataset.from_generator(rows, output_signature=shapes).batch(2, drop_remainder=True)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data.repeat(), steps_per_epoch=10_000, epochs=1, verbose=0)
"""
    script = command.script(source)
    finished = command.run("--workers", "2", "--hang-timeout", "60", script, deadline=900)
    assert finished.code == 124
    late = (
        r"worker 1 never reached step \d+: waiting in next\(iterator\) for \d+ s; the other waits "
    )
    assert len(re.findall(late + r"in the all-reduce", finished.err)) == 2, finished.err
    assert "a step usually takes 0." in finished.err
    assert re.search(r"its data is being made at .*train\.py:\d+, in rows\.", finished.err)
