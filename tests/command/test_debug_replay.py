"""`phalanx run` of a script whose loss stops being finite, and `phalanx debug replay` of it."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

SCRIPT = """
import sys
import keras
import numpy as np

class Ratio(keras.layers.Layer):
    def call(self, x):
        return x[:, :1] / x[:, 1:]

class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(2, name="first", kernel_initializer="identity")
        self.ratio = Ratio(name="ratio")

    def call(self, x):
        return self.ratio(self.first(x))

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).uniform(1, 2, size=(32, 2)).astype("float32")
x[int(sys.argv[1]), 1] = 0.0
model = Model()
model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=2)
model.fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0)
"""


def test_a_division_on_one_worker_is_named_with_its_sample(command):
    script = command.script(SCRIPT)
    done = command.run("--workers", "2", "--name", "first", script, "14")
    assert done.code == 1
    assert "The gradient of model/first/kernel had NaN" in done.err + done.out
    run = command.directory / "runs" / "first"
    assert [path.name for path in (run / "captures").iterdir()] == ["worker-1-step-2"]

    def replay(*words):
        return subprocess.run(
            [sys.executable, "-m", "phalanx", "debug", "replay", "first", *words],
            cwd=command.directory, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    alone = replay()
    assert alone.returncode == 2
    assert "Name the script: phalanx debug replay RUN --script train.py" in alone.stderr
    by_script = replay("--json", "--script", script, "14")
    assert by_script.returncode == 0, by_script.stderr
    found = json.loads(by_script.stdout)["found"]
    assert (found["phase"], found["operation"]) == ("forward", "RealDiv")
    assert found["layer"].endswith("ratio")
    assert found["variable"] == "model/first/kernel"
    assert [(s["in_batch"], s["row"]) for s in found["samples"]] == [(6, 14)]
    assert found["cause"]["kind"] == "division"
    other = replay("--step", "worker-0-step-9")
    assert (other.returncode, "found worker-1-step-2" in other.stderr) == (2, True)
