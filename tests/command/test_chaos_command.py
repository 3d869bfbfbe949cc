"""Faults before an unchanged script, with the real command."""

import pytest

from phalanx.testing import chaos

SCRIPT = """
import sys
import keras
import numpy as np

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((16, 2), "float32")
backup = keras.callbacks.BackupAndRestore("backup")
history = model.fit(x, x[:, :1], batch_size=4, epochs=int(sys.argv[1]), verbose=0, callbacks=backup)
say("epochs", history.epoch)
"""


@pytest.mark.full
def test_an_unchanged_script_meets_its_faults_once(command):
    plan = [chaos.SlowDown(worker=0, step=2, seconds=0.1), chaos.Kill(worker=1, step=6)]
    words = chaos.command(plan, command.script(SCRIPT), "3")
    finished = command.run("--workers", "2", "--max-restarts", "2", *words)
    assert finished.code == 0, finished.err
    assert "worker 1 failed: it was killed by SIGKILL" in finished.err
    assert "restart 1 of 2" in finished.err
    assert "restart 2 of 2" not in finished.err
    assert "chaos: SlowDown(worker=0, step=2, seconds=0.1)" in finished.out
    assert finished.output()["epochs"] == [1, 2]


@pytest.mark.full
def test_a_plan_that_cannot_be_read_is_said(command):
    words = ("-m", "phalanx.testing.chaos", "Kil(worker=1)", command.script(SCRIPT))
    finished = command.run("--workers", "1", *words)
    assert finished.code == 1
    assert "Cannot read 'Kil(worker=1)'" in finished.err
