"""A cable is pulled while workers on several hosts train, who have no launcher here.

That a launcher notices is in test_several_hosts.py: TensorFlow's own heartbeat is off under one.
"""

import json
import runpy

import pytest

from phalanx.testing import run_workers

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]

EPOCHS = 50
SECONDS = 600

SCRIPT = """
import json, sys, time
import keras
import numpy as np
from phalanx.callbacks import Checkpoint, every_n_steps

class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("SAY epoch", epoch, flush=True)
        time.sleep(0.1)

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(30, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
callbacks = [Checkpoint("{checkpoints}", every=every_n_steps(8)), Slow()]
history = model.fit(x, y, batch_size=6, epochs={epochs}, callbacks=callbacks, verbose=0)
print("SAY loss", json.dumps(history.history["loss"]), flush=True)
print("SAY weights", json.dumps([w.tolist() for w in model.get_weights()]), flush=True)
"""


@pytest.fixture
def script(tmp_path):
    def write(name="train.py", *, epochs):
        path = tmp_path / name
        path.write_text(SCRIPT.format(checkpoints=tmp_path / f"{name}.checkpoints", epochs=epochs))
        return path

    return write


def undisturbed(path):
    """What the script comes to on three workers of this machine, with no one's help."""
    import phalanx

    phalanx.enable()
    found = runpy.run_path(path)
    weights = [w.tolist() for w in found["model"].get_weights()]
    return json.loads(json.dumps({"loss": found["history"].history["loss"], "weights": weights}))


def trains(worker_group, rank, epoch):
    return lambda: (worker_group.output(rank, "epoch") or 0) >= epoch


def test_training_continues_from_the_checkpoint_after_a_pulled_cable(hosts, worker_group, script):
    train = script(epochs=EPOCHS)
    first = worker_group(train, workers=3)
    first.until(trains(first, 0, 5))
    hosts.cut(2)
    first.kill()  # as the launchers do
    hosts.heal(2)
    second = worker_group(train, workers=3, attempt=1)
    assert second.end() == [0, 0, 0]
    assert second.output(0, "epoch") == EPOCHS - 1
    started = int(second.log(0).split("SAY epoch ")[1].split()[0])
    assert started >= 4, "it continued where it was"

    whole = str(script("whole.py", epochs=EPOCHS))
    expected, *_ = run_workers(undisturbed, 3, args=[whole], seed=1, deadline=SECONDS)
    for rank in range(3):
        assert {key: second.output(rank, key) for key in expected} == expected


def test_a_cable_that_is_back_soon_is_borne(hosts, worker_group, script):
    running = worker_group(script(epochs=EPOCHS), workers=2)
    running.until(trains(running, 0, 5))
    hosts.cut(1)
    before = running.output(0, "epoch")
    with pytest.raises(AssertionError, match="not so within"):
        running.until(trains(running, 0, before + 5), seconds=2)  # nothing continues meanwhile
    hosts.heal(1)
    assert running.end() == [0, 0]
    assert running.output(1, "epoch") == EPOCHS - 1
