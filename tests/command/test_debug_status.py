"""Planted bugs that leave workers waiting, each found by name: one run, restarted each time."""

import json
import re

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.report.run_status import read_status

TRAIN = """
import json, os, time
import keras
import numpy as np
import tensorflow as tf

attempt = json.loads(os.environ["PHALANX_WORKER_SPEC"])["attempt"]
rank = tf.distribute.get_strategy().cluster_resolver.task_id

class OwnSum(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        if attempt == 2:  # a collective of the script's own, of what the worker's batch is
            context = tf.distribute.get_replica_context()
            context.all_reduce("SUM", tf.reshape(data[0], [-1]))
        return super().train_step(data)

model = OwnSum()
model.compile("sgd", "mse")
model.build((None, None, 2))

def batch(length):
    return np.ones((4, length, 2), "float32"), np.ones((4, length, 1), "float32")

def stuck_in_its_input():
    if rank == 1:
        os.mkfifo("pipe")

    def row(number):
        # No one writes into the pipe: the wait is TensorFlow's, and no stack of Python shows it.
        file = tf.where(tf.equal(number, 5 if rank == 1 else -1), "pipe", "/dev/null")
        x = tf.ones([4, 3, 2]) + tf.cast(tf.strings.length(tf.io.read_file(file)), tf.float32)
        return x, x[:, :, :1]

    data = tf.data.Dataset.range(50).map(row)
    model.fit(data, epochs=1, verbose=0)

def leaves_out_a_batch():
    for number in range(8):
        if rank == 1 and number == 3:
            continue
        model.train_on_batch(*batch(3))

def has_other_shapes():
    for _ in range(3):
        model.train_on_batch(*batch(5 if rank == 1 else 3))

[stuck_in_its_input, leaves_out_a_batch, has_other_shapes][attempt]()
"""


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_late_worker_is_named_live_and_afterwards(command):
    script = command.script(TRAIN)
    requested = (
        "--workers",
        "2",
        "--name",
        "planted",
        "--hang-timeout",
        "20",
        "--max-restarts",
        "2",
    )
    process = command.start(*requested, script)
    run = command.directory / "runs" / "planted"

    def verdict(attempt, now=0.0):
        return read_status(run, attempt=attempt, now=now).verdict

    command.wait_until(lambda: (run / "attempts" / "0" / "worker-1.first_step").exists(), 240)
    command.wait_until(lambda: "worker 1 never reached step 6" in verdict(0), 120)
    finished = command.finish(process, 600)

    stuck = r"worker 1 never reached step 6: waiting in next\(iterator\) for \d+ s; the other waits"
    assert re.match(stuck + " in the all-reduce", verdict(0)), verdict(0)

    # TensorFlow may find that the two calls do not fit, or both may wait forever.
    left_out = r"worker 1 has come to its script's end after step 7 for \d+ s; the other waits"
    assert re.search(left_out + " in the all-reduce", verdict(1)), verdict(1)

    reported = read_status(run, attempt=2, now=0.0)
    assert reported.differ == (
        "Their last batches differ: worker 0: x float32[samples, 3, 2], y float32[samples, 3, 1]; "
        "worker 1: x float32[samples, 5, 2], y float32[samples, 5, 1]."
    )

    assert "Their last batches differ" in finished.err

    file = command.directory / "trace.json"
    shown = CliRunner().invoke(app, ["debug", "trace", str(run), "-o", str(file)])
    assert shown.exit_code == 0, shown.output
    events = json.loads(file.read_text())["traceEvents"]
    steps = {event["name"] for event in events if event["pid"] == 1 and event["ph"] == "X"}
    assert {"step 5", "input", "compute and all-reduce", "gather"} <= steps
