"""A training that saves to S3, is killed, and resumes from there."""

import os
import subprocess
import sys

import pytest

from phalanx.checkpoint.reader import latest, verify
from phalanx.testing import chaos

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]

SCRIPT = """
import sys
import keras
import numpy as np
from phalanx.callbacks import Checkpoint, every_n_steps

x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile("adam", "mse")
checkpoint = Checkpoint(sys.argv[1], every=every_n_steps(3), max_to_keep=2)
history = model.fit(x, x[:, :1], batch_size=8, epochs=4, callbacks=[checkpoint], verbose=0)
print("LOSS", history.history["loss"], flush=True)
print("SUM", [float(np.abs(w).sum()) for w in model.get_weights()], flush=True)
"""


def run(place, server, plan, url):
    """What worker 0 came to, and what the command said."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    words = chaos.command(plan, "train.py", url)
    finished = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "--workers", "2", "--seed", "3",
         "--max-restarts", "2", *words],
        cwd=place,
        env={**environment, **server.environment()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    shown = [line for line in finished.stdout.splitlines() if "] LOSS" in line or "] SUM" in line]
    assert len(shown) == 2
    return shown, finished.stderr


def test_a_killed_training_continues_from_s3(tmp_path, rclone):
    (tmp_path / "train.py").write_text(SCRIPT)
    expected, _ = run(tmp_path, rclone, [], "s3://bucket/whole")
    plan = [chaos.FailWrites(worker=1, nth=2, error="EIO"), chaos.Kill(worker=1, step=11)]
    shown, output = run(tmp_path, rclone, plan, "faulty+s3://bucket/killed")
    assert "restart 1 of 2" in output
    assert shown == expected
    folder = rclone.folder("killed")
    assert latest(folder).manifest.step == 20
    assert set(dict(verify(folder)).values()) == {None}
