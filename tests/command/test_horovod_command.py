"""`phalanx run --strategy horovod` on whole scripts."""

import pytest

pytest.importorskip("horovod")
pytestmark = pytest.mark.horovod

TRAINING = """
import os, signal, sys
import keras, numpy as np
import phalanx
import tensorflow as tf
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int64")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), loss, metrics=["accuracy"])
"""

FIT = """
history = model.fit(x, y, batch_size=16, epochs=2, verbose=2, validation_split=0.2).history
say("history", history)
say("score", model.evaluate(x, y, batch_size=16, verbose=0))
say("predicted", model.predict(x, batch_size=16, verbose=0).ravel().tolist())
say("replicas", tf.distribute.get_strategy().num_replicas_in_sync)
"""


def test_a_script_trains_as_on_one_device(command):
    script = command.script(TRAINING + FIT)
    alone = command.run("--strategy", "single", "--seed", "3", "--tee", "all", script)
    two = command.run(
        *("--workers", "2", "--strategy", "horovod", "--seed", "3", "--tee", "all", script)
    )
    assert (alone.code, two.code) == (0, 0), two.err
    assert two.output(0)["replicas"] == 2
    for rank in (0, 1):
        output = two.output(rank)
        for name, values in alone.output(0)["history"].items():
            assert output["history"][name] == pytest.approx(values, rel=1e-5)
        assert output["score"] == pytest.approx(alone.output(0)["score"], rel=1e-5)
        assert output["predicted"] == pytest.approx(
            alone.output(0)["predicted"], rel=1e-4, abs=1e-5
        )
    assert "strategy horovod (2 replicas), because phalanx run --strategy horovod" in two.out


KILLED = """
class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and phalanx.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
model.fit(x, y, batch_size=16, epochs=50, verbose=0, callbacks=[Kill()])
"""


@pytest.mark.full
def test_a_worker_that_dies_is_named(command):
    ended = command.run(
        *("--workers", "2", "--strategy", "horovod", command.script(TRAINING + KILLED))
    )
    assert ended.code == 137, ended.err
    assert "Worker 1 failed first: it was killed by SIGKILL" in ended.err


ELASTIC = """
import json, pathlib, time
import phalanx

me = json.loads(os.environ["PHALANX_WORKER_SPEC"])
if me["rank"] == 1 and pathlib.Path("broken").exists():
    raise OSError("no such device")


class Notes(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        say(f"epoch-{epoch}", [me["attempt"], me["world_size"]])
        pathlib.Path("broken").unlink(missing_ok=True)
        time.sleep(1.0 if me["world_size"] == 1 else 0.0)


kept = phalanx.callbacks.Checkpoint(sys.argv[1])
history = model.fit(x, y, batch_size=16, epochs=20, verbose=0, callbacks=[kept, Notes()])
say("loss", history.history["loss"])
"""


@pytest.mark.full  # the time of the build
@pytest.mark.timeout(1500)
def test_it_continues_with_one_of_two_and_grows_again(command):
    script = command.script(TRAINING + ELASTIC)
    whole = command.run("--strategy", "single", "--seed", "3", script, "whole", deadline=300)
    (command.directory / "broken").touch()
    requested = ("--workers", "1:2", "--max-restarts", "3", "--strategy", "horovod", "--seed", "3")
    grown = command.run(*requested, script, "grown", deadline=500)
    assert (whole.code, grown.code) == (0, 0), grown.err
    assert "continuing with 1 of 2 workers" in grown.err
    assert "continuing with 2 of 2 workers again" in grown.err
    output = grown.output()
    assert output["epoch-0"][1] == 1
    assert output["epoch-19"][1] == 2
    assert output["loss"] == pytest.approx(whole.output()["loss"], rel=1e-4)
