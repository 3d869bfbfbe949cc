"""What `phalanx watch` and `phalanx report` make of the records of real runs."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

TRAINING = """
import os, keras, numpy as np, phalanx
rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 8)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)],
    name="small",
)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-2, global_clipnorm=0.1), loss, metrics=["accuracy"])
logger = phalanx.callbacks.GradientLogger(every_n_steps=4, max_overhead=None)
model.fit(x, y, batch_size=64, epochs=3, verbose=0, validation_split=0.25, callbacks=[logger])
"""
FAILURE = """
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    raise MemoryError("no more <room>")
model.fit(x, y, batch_size=64, epochs=1, verbose=0)
"""


def phalanx(command, *words):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        cwd=command.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_a_run_that_ends_well(command):
    command.script(TRAINING)
    finished = command.run("--workers", "2", "--seed", "7", "--name", "first", "train.py")
    assert finished.code == 0, finished.err
    (run,) = json.loads(phalanx(command, "report", "first", "--json").stdout)["runs"]
    summary = run["summary"]
    assert (summary["state"], summary["workers"], summary["replicas"]) == ("ended well", 2, 2)
    assert (summary["steps"], summary["epochs"], summary["attempts"]) == (36, 3, 1)
    assert summary["fits"][0].startswith("small, 161 parameters, Adam, 3 epochs, 12 steps each")
    assert summary["samples_per_second"] > 0
    assert summary["memory_bytes"] > 1e8
    assert sum(summary["time_fractions"].values()) == pytest.approx(1.0, abs=1e-3)
    assert 0 < summary["clip_fraction"] <= 1
    curves = {(each["of"], each["kind"]): each for each in run["metrics"]}
    for metric in ("loss", "accuracy"):
        assert curves[metric, "epoch"]["steps"] == [12, 24, 36]
        assert curves[metric, "validation"]["steps"] == [12, 24, 36]
    norms = {each["name"]: each for each in run["gradients"]["gradients/norm"]}
    assert set(norms) == {"worker 0", "worker 1", "total"}
    assert norms["total"]["steps"][0] == 1
    assert [worker["ending"] for worker in run["workers"]] == ["ended well"] * 2
    assert [span["kind"] for span in run["spans"]] == ["ended well"] * 2
    assert run["not_recorded"] == ["No checkpoint was saved."]
    assert run["not_readable"] == []
    phalanx(command, "report")
    assert (command.directory / "runs" / "first" / "report.html").stat().st_size > 1e6
    shown = phalanx(command, "watch").stdout
    assert shown.startswith("run first: ended well")
    assert shown.count("ended") == 3


def test_a_run_that_fails(command):
    command.script(TRAINING + FAILURE)
    finished = command.run("--workers", "2", "--name", "bad", "train.py")
    assert finished.code == 1
    (run,) = json.loads(phalanx(command, "report", "bad", "--json").stdout)["runs"]
    assert (run["summary"]["state"], run["summary"]["exit_code"]) == ("failed", 1)
    assert "MemoryError: no more <room>" in run["summary"]["report"]
    assert run["workers"][1]["ending"] == "MemoryError: no more <room>"
    shown = phalanx(command, "watch", "bad").stdout
    assert "worker 1 failed: MemoryError: no more <room> (exit code 1)" in shown
