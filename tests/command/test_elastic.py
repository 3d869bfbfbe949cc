"""A run continues with fewer workers, and with all again, with the real command."""

import pytest

from phalanx.monitoring.event_log import launcher_records_path, read_records

TRAINING = """
import json, os, sys, time
from pathlib import Path

me = json.loads(os.environ["PHALANX_WORKER_SPEC"])
attempt, workers = me["attempt"], me["world_size"]
if me["rank"] == 2 and Path("broken").exists():
    raise OSError("no such device")

import keras
import numpy as np
import phalanx

class Notes(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if workers == 2:
            time.sleep(0.2)
    def on_epoch_end(self, epoch, logs=None):
        say(f"epoch-{epoch}", [attempt, workers])
        Path("broken").unlink(missing_ok=True)

x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
kept = phalanx.callbacks.Checkpoint(sys.argv[1])
model.fit(x, y, batch_size=6, epochs=8, verbose=0, callbacks=[kept, Notes()])
say("loss", model.history.history["loss"])
"""


def resizes(command, name):
    found = read_records(launcher_records_path(command.directory / "runs" / name)).records
    return [record["workers"] for record in found if record["kind"] == "resize"]


@pytest.mark.timeout(1500)
def test_it_continues_with_two_of_three_and_grows_again(command):
    script = command.script(TRAINING)
    undisturbed = command.run("--workers", "1", "--seed", "5", script, "whole", deadline=300)
    (command.directory / "broken").touch()
    requested = ("--workers", "2:3", "--max-restarts", "3", "--seed", "5", "--name", "it")
    finished = command.run(*requested, script, "grown", deadline=400)
    assert finished.code == undisturbed.code == 0, finished.err
    assert "worker 2 failed: OSError: no such device; restart 1 of 3" in finished.err
    assert "worker 2 cannot restart: continuing with 2 of 3 workers" in finished.err
    assert "continuing with 3 of 3 workers again" in finished.err
    assert resizes(command, "it") == [[0, 1], [0, 1, 2]]
    output = finished.output()
    assert output["epoch-0"] == [2, 2]
    assert output["epoch-7"] == [3, 3]
    # The global batches are the same, whoever computed them.
    assert output["loss"] == pytest.approx(undisturbed.output()["loss"], rel=1e-4)
