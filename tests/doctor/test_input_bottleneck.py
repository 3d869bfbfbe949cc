"""How fast a script's input is, against its step, and what would help."""

import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.data.benchmark import StageSpeed, stage_speeds
from phalanx.data.pipelines.pipeline import pipeline
from phalanx.diagnostics.doctor.input_bottleneck import slowest, verdict

SCRIPT = """
import keras, numpy as np, sys, tensorflow as tf
x = np.zeros((int(sys.argv[1]), 4), "float32")
data = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(64, seed=1)
data = data.map(lambda a, b: (a, b)).batch(16)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
model.fit(data, epochs=1000)
raise AssertionError("fit has returned")
"""


def speeds(**rates):
    return [StageSpeed(name=name, rate=rate) for name, rate in rates.items()]


def test_the_slowest_stage_is_the_one_that_adds_most_time():
    assert slowest(speeds(Range=1e6, Map=500.0, Batch=450.0)).name == "Map"
    assert slowest(speeds(Range=90.0, Map=100.0, Batch=80.0)).name == "Range"


@pytest.mark.parametrize(
    ("rates", "consumed", "says"),
    [
        ({"Range": 9e5, "Map": 300.0}, 100.0, "3.0 times what the step consumes"),
        ({"Range": 9e5, "Map": 50.0}, 100.0, "about 50% of the time"),
        ({"Range": 9e5, "Map": 50.0}, 100.0, "num_parallel_calls=tf.data.AUTOTUNE"),
        ({"read, shuffle, batch": 9e5, "augment": 50.0}, 100.0, "--data-workers 2"),
        ({"Range": 9e5, "Map": 50.0}, None, "Most of the time goes into 'Map'"),
    ],
)
def test_the_verdict(rates, consumed, says):
    assert says in verdict(speeds(**rates), consumed)


@pytest.mark.full
def test_each_stage_is_measured():
    slept = 0.0

    def sleep(value):
        nonlocal slept
        slept += 0.005
        return value

    def slow(x):
        return tf.py_function(sleep, [x], tf.int64)

    def clock():  # other processes do not move it
        return time.process_time() + slept

    dataset = tf.data.Dataset.range(400).map(slow).batch(8).prefetch(2)
    found = stage_speeds(dataset, seconds=0.2, clock=clock)
    assert [stage.name for stage in found] == ["Range", "Map", "Batch", "Prefetch"]
    assert slowest(found).name == "Map"


@pytest.mark.full
def test_the_stages_of_a_pipeline_are_its_functions():
    data = pipeline(np.arange(64.0), 8, map=lambda v: v + 1, cache="memory")
    found = stage_speeds(data, seconds=0.02)
    assert [stage.name for stage in found] == ["read, shuffle, batch", "map", "cache"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bench", "--seconds", "0", "train.py"], "more than 0; found 0.0"),
        (["inspect", "--workers", "0", "train.py"], "at least 1; found 0"),
        (["bench", "nowhere.py"], "nowhere.py"),
    ],
)
def test_what_cannot_be_measured(words, says):
    result = CliRunner().invoke(app, ["data", *words])
    assert says in str(result.exception)


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_commands(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "made.py").write_text(
        "import tensorflow as tf\ndef data():\n    return tf.data.Dataset.range(99).batch(3)\n"
    )
    table = command(tmp_path, 0, "bench", "--seconds", "0.1", "train.py", "640")
    for name in ("TensorSlice", "Shuffle", "Map", "Batch", "the training step"):
        assert name in table
    table = command(tmp_path, 0, "bench", "--seconds", "0.1", "made:data")
    assert "the training step" not in table
    assert "Range" in table
    assert "sequential" not in command(tmp_path, 0, "inspect", "train.py", "640")
    (tmp_path / "train.py").write_text(SCRIPT.replace(".batch(16)", ".shard(2, 0).batch(16)"))
    assert "cut by hand into 2 shards" in command(tmp_path, 1, "inspect", "train.py", "640")
    (tmp_path / "train.py").write_text("print('no training')\n")
    assert "calls no fit" in command(tmp_path, 2, "bench", "train.py")


def command(directory, code, *words):
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "data", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
