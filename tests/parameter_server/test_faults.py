"""The real command: a killed worker is replaced, a dead server or chief leads to a restart."""

import json
import os
import signal

import pytest

import phalanx

pytestmark = pytest.mark.timeout(1500)

SCRIPT = """
import os, sys, time
import keras, numpy as np, tensorflow as tf
from phalanx.callbacks import Checkpoint, every_n_steps
from phalanx.worker.preemption import is_requested

SAMPLES, BATCH = 160, 8
x = np.arange(SAMPLES, dtype="float32")[:, None] / SAMPLES


class Seen(keras.metrics.Metric):
    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.counts = self.add_weight(shape=(SAMPLES,), name="counts", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        numbers = tf.cast(tf.round(y_true[:, 0] * SAMPLES), tf.int32)
        self.counts.assign(self.counts + tf.reduce_sum(tf.one_hot(numbers, SAMPLES), 0))

    def result(self):
        return tf.reduce_min(self.counts) + 1000 * (tf.reduce_max(self.counts) - 1)


class Wait(keras.callbacks.Callback):
    # In the middle of the second epoch, with steps under way, until somebody was killed or asked.
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5 and int(self.model.optimizer.iterations) > 25:
            open("ready", "w").close()
            while not (os.path.exists("killed") or is_requested()):
                time.sleep(0.05)


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[Seen()])
data = x if "arrays" in sys.argv else None
if data is None:
    fitted = (tf.data.Dataset.from_tensor_slices((x, x)).shuffle(SAMPLES).batch(BATCH),)
else:
    fitted = (x, x)
batches = []  # of this process, since what a callback has is saved too
note = lambda batch, logs: batches.append(batch)
noting = keras.callbacks.LambdaCallback(on_train_batch_begin=note)
saving = Checkpoint(every=every_n_steps(7))
history = model.fit(*fitted, batch_size=BATCH if data is not None else None, epochs=4, verbose=0,
                    callbacks=[Wait(), noting, saving])
say("seen", history.history["seen"])
say("iterations", int(model.optimizer.iterations))
say("started", batches[0])
"""


def pid_of(command, rank):
    (records,) = command.directory.glob("runs/*/records/launcher.jsonl")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    (start,) = (line for line in lines if line["kind"] == "attempt_start")
    return next(worker["pid"] for worker in start["workers"] if worker["rank"] == rank)


def started(command, *words):
    """The command, in the middle of the second epoch."""
    script = command.script(SCRIPT)
    strategy = ["--strategy", "parameter-server", "--workers", "1", "--ps", "1"]
    process = command.start(*strategy, *words[:-1], script, words[-1])
    command.wait_until((command.directory / "ready").exists, deadline=600)
    command.wait_until(lambda: saved(command)[-1:] == [21])  # while training stands
    return process


def saved(command):
    (kept,) = command.directory.glob("runs/*/checkpoints")
    return [manifest.step for manifest in phalanx.checkpoint.list(kept)]


def killed(command, rank, *words):
    process = started(command, *words)
    os.kill(pid_of(command, rank), signal.SIGKILL)
    (command.directory / "killed").touch()
    done = command.finish(process, deadline=600)
    assert done.code == 0, done.out + done.err
    return done


def records(command, kind):
    (found,) = command.directory.glob("runs/*/records/launcher.jsonl")
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("data", [pytest.param("arrays", marks=pytest.mark.full), "dataset"])
def test_a_killed_worker_is_replaced_and_the_rest_continues(command, data):
    done = killed(command, 1, data)
    assert [line["rank"] for line in records(command, "worker_replaced")] == [1]
    assert records(command, "restart") == []
    assert "starting a replacement" in done.err
    # No sample twice in an epoch and none left out, whatever was lost with the worker.
    assert done.output() == {"seen": [1.0] * 4, "iterations": 80, "started": 0}


@pytest.mark.full
@pytest.mark.parametrize(("rank", "data"), [(2, "dataset"), (0, "arrays")])
def test_a_dead_server_or_chief_leads_to_a_restart_from_what_was_saved(command, rank, data):
    done = killed(command, rank, "--max-restarts", "1", data)
    (restart,) = records(command, "restart")
    assert restart["rank"] == rank
    assert records(command, "worker_replaced") == []
    # It was saved after step 21, the first of the second epoch, and continues with the next.
    assert done.output() == {"seen": [1.0] * 4, "iterations": 80, "started": 1}


@pytest.mark.full
def test_a_signal_saves_where_training_is(command):
    process = started(command, "dataset")
    process.send_signal(signal.SIGTERM)
    done = command.finish(process, deadline=600)
    assert done.code == 75, done.out + done.err
    (kept,) = command.directory.glob("runs/*/checkpoints")
    last = phalanx.checkpoint.list(kept)[-1]
    assert 26 <= last.step < 40
    assert last.state["position"]["batch"] == last.step - 20
    assert last.state["servers"]["totals"]["samples"] == 8 * (last.step - 20)
