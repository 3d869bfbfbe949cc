"""Goodput of a real run with a restart, against the clock of the training script itself."""

import json
import subprocess
import sys
import time
from collections import defaultdict

import pytest

pytestmark = pytest.mark.full

TRAINING = """
import json, os, signal, time
from pathlib import Path
import keras, numpy as np, tensorflow as tf, phalanx

def note_the_time():
    with open("times.jsonl", "a") as file:
        file.write(f"{time.time()}\\n")

note_the_time()
spec = json.loads(os.environ["PHALANX_WORKER_SPEC"])
rank, attempt = spec["rank"], spec["attempt"]
x = np.random.default_rng(0).normal(size=(640, 4)).astype("float32")

def pause(values):
    def wait(values):
        time.sleep(0.04)
        return values
    waited = tf.py_function(wait, [values], tf.float32)
    waited.set_shape(values.shape)
    return waited

class Clock(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()
    def on_train_batch_end(self, batch, logs=None):
        seconds = time.perf_counter() - self.began
        step = int(self.model.optimizer.iterations)
        if rank == 0:
            with open("steps.jsonl", "a") as file:
                file.write(json.dumps([attempt, step, seconds]) + "\\n")
        if rank == 1 and attempt == 0 and step == 70:
            os.kill(os.getpid(), signal.SIGKILL)

inputs = keras.Input((4,))
outputs = keras.layers.Dense(1)(keras.layers.Lambda(pause, output_shape=(4,))(inputs))
model = keras.Model(inputs, outputs)
model.compile("sgd", "mse")
checkpoint = phalanx.callbacks.Checkpoint("saved", every=phalanx.callbacks.every_n_steps(25))
model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[Clock(), checkpoint])
note_the_time()
"""


def test_goodput_is_what_the_scripts_own_clock_says(command):
    command.script(TRAINING)
    began = time.monotonic()
    finished = command.run("--workers", "2", "--max-restarts", "1", "--name", "r", "train.py")
    took = time.monotonic() - began
    assert finished.code == 0, finished.err
    output = subprocess.run(
        [sys.executable, "-m", "phalanx", "report", "r", "--json"],
        cwd=command.directory, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    found = json.loads(output)["runs"][0]["goodput"]
    seconds = {row: each["seconds"] for row, each in found["rows"].items()}

    lines = map(json.loads, (command.directory / "steps.jsonl").read_text().splitlines())
    attempts = defaultdict(dict)
    for attempt, step, each in lines:
        attempts[attempt][step] = each
    assert sorted(attempts) == [0, 1]
    firsts = {attempt: min(steps) for attempt, steps in attempts.items()}
    resumed = firsts[1] - 1
    assert 25 <= resumed < 70
    own = sum(
        each
        for attempt, steps in attempts.items()
        for step, each in steps.items()
        if step != firsts[attempt] and (attempt == 1 or step <= resumed)
    )
    again = sum(each for step, each in attempts[0].items() if step > resumed)
    assert sum(seconds.values()) == pytest.approx(found["seconds"])
    times = [float(line) for line in (command.directory / "times.jsonl").read_text().split()]
    assert max(times) - min(times) <= found["seconds"] <= took
    in_steps = seconds["training"] + seconds["input"] + seconds["waiting"]
    assert in_steps == pytest.approx(own, abs=0.02 * took)
    assert seconds["repeated"] >= 0.98 * again
    assert found["steps_repeated"] <= max(attempts[0]) - resumed
    assert seconds["starting"] > 0 < seconds["first_step"]
    assert seconds["saving"] > 0 < seconds["callbacks"]
