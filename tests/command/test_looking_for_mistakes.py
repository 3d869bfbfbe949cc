"""`phalanx run` looks for mistakes: whole commands, with planted bugs and real workers."""

import subprocess
import sys

import numpy as np
import pytest

from phalanx.launcher.run_layout import profile_of

MODEL = """
import os, sys
import keras, numpy as np, phalanx, tensorflow as tf

from phalanx.cluster.spec import WorkerSpec
rank = WorkerSpec.from_environment(os.environ).rank
random = np.random.default_rng(0)
x = random.normal(size=(64, 4)).astype("float32")
y = random.normal(size=(64, 1)).astype("float32")

def build(rate=0.1):
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae"])
    return model

def report(key, model, history):
    say(key, [history.history, [v.numpy().tolist() for v in model.weights]])
"""

TRIAL = (
    MODEL
    + """
class Counts(keras.callbacks.Callback):
    batches = 0
    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

def train(key, steps=None, first=64, epochs=3, **options):
    model, counts = build(), Counts()
    history = model.fit(
        x[:first], y[:first], batch_size=8, epochs=epochs, verbose=0,
        steps_per_epoch=steps, validation_steps=steps,
        callbacks=[
            counts, keras.callbacks.CSVLogger("log.csv"),
            keras.callbacks.ModelCheckpoint("kept.keras"), keras.callbacks.TensorBoard("board"),
            phalanx.callbacks.Checkpoint("checkpoints"),
        ] if "--write" in sys.argv else [counts],
        **{"validation_data": (x[32:], y[32:]), **options},
    )
    report(key, model, history)
    say(key + "-batches", counts.batches)
    return model

if "plain" in sys.argv:
    train("trial", steps=2, epochs=1)
    train("overfit", first=16, shuffle=False, validation_data=(x[:16], y[:16]))
    model = build()
    history = model.fit(x[:16], y[:16], batch_size=8, epochs=3, shuffle=False, verbose=0)
    report("unknown-length", model, history)
else:
    model = train(sys.argv[1])
    say("evaluated", model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True))
    if sys.argv[1] == "overfit":
        model = build(rate=0.0)
        shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=1).batch(8)
        report("frozen", model, model.fit(shuffled, epochs=3, verbose=0))
        strategy = phalanx.strategy()
        with strategy.scope():
            model = build()
        own = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(8)
        shared = strategy.experimental_distribute_dataset(own)
        report("unknown-length", model, model.fit(shared, epochs=3, verbose=0))
"""
)


def same(found, expected):
    (history, weights), (wanted_history, wanted_weights) = found, expected
    assert history.keys() == wanted_history.keys()
    for name, values in wanted_history.items():
        assert history[name] == pytest.approx(values, rel=1e-5), name
    for got, want in zip(weights, wanted_weights, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.full
def test_few_batches_train_what_one_device_would(command):
    script = command.script(TRIAL)
    plain = command.run("--seed", "7", "--name", "plain", script, "plain")
    assert plain.code == 0, plain.err
    before = sorted(path.name for path in command.directory.iterdir())
    trial = command.run(
        *("--seed", "7", "--workers", "2", "--fast-dev-run", "2", "--tee", "all"),
        *(script, "trial", "--write"),
    )
    assert trial.code == 0, trial.err
    assert "trained and validated on 2 batches at most; nothing was kept" in trial.err
    assert sorted(path.name for path in command.directory.iterdir()) == before
    assert [path.name for path in (command.directory / "runs").iterdir()] == ["plain"]
    same(trial.output()["trial"], plain.output()["trial"])
    assert trial.output()["trial-batches"] == 2
    assert trial.output(1)["trial"] == trial.output()["trial"]

    overfit = command.run(
        *("--seed", "7", "--workers", "2", "--overfit-batches", "2", script, "overfit")
    )
    assert overfit.code == 0, overfit.err
    same(overfit.output()["overfit"], plain.output()["overfit"])
    same(overfit.output()["unknown-length"], plain.output()["unknown-length"])
    assert overfit.output()["overfit-batches"] == 6
    losses = overfit.output()["frozen"][0]["loss"]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6), "other batches in another epoch"


BUGS = (
    MODEL
    + """
class Model(keras.Sequential):
    def train_step(self, data):
        step = int(self.optimizer.iterations.numpy()) + 1
        if step == 1 and "stop" in sys.argv:
            breakpoint()
        if step == 3 and rank == 1 and "skip" in sys.argv:
            return {}
        if step == 3 and "shapes" in sys.argv:
            width = 3 if rank == 1 else 2
            tf.distribute.get_replica_context().all_gather(tf.zeros([4, width]), axis=0)
        return super().train_step(data)

def build():
    layers = [keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(1)]
    model = Model(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model

build().fit(x, y, batch_size=8, verbose=0)
"""
)


def with_input(command, typed, *words):
    """A command whose standard input says `typed`."""
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "run", *words],
        cwd=command.directory,
        input=typed,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.full
def test_a_breakpoint_and_other_shapes_on_one_rank(command):
    script = command.script(BUGS)
    typed = "p 'rank', rank, 'rows', int(data[0].shape[0])\nc\n"
    words = ("--workers", "2", "--debug", "--debug-rank", "1", "--tee", "all")
    done = with_input(command, typed, *words, script, "stop", "shapes")
    assert done.returncode == 1
    assert "worker 1 is at train.py:" in done.stdout
    assert "('rank', 1, 'rows', 4)" in done.stdout
    assert "is passed over: worker 1 has the terminal" in done.stdout
    assert (
        "Workers call a collective with different tensors: step 3, an all_gather: worker 1 has "
        "tensor 1 (any, 3) float32, worker 0 (any, 2) float32." in done.stderr
    )


@pytest.mark.full
def test_a_rank_that_skips_a_batch(command):
    done = command.run("--workers", "2", "--debug", command.script(BUGS), "skip")
    assert done.code == 1
    found = "Workers call a collective with different tensors: worker 1 is at step"
    assert found in done.err
    assert "worker 0 at step 3 (gradients)" in done.err


ASSERTS = (
    MODEL
    + """
class Checked(keras.layers.Layer):
    def call(self, inputs):
        tf.print("rows", tf.shape(inputs)[0])
        tf.debugging.assert_less(inputs, 100.0, message="a feature is out of range")
        return inputs

x[4 * 8 + 6, 2] = 1000.0  # the seventh row of the fifth batch, which is worker 1's
model = keras.Sequential([keras.Input((4,)), Checked(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""
)


@pytest.mark.full
def test_an_assertion_and_a_profile(command):
    done = command.run(
        *("--workers", "2", "--name", "first", "--profile", "2:3", "--profile-ranks", "0,1"),
        *("--tee", "all", command.script(ASSERTS)),
    )
    assert done.code == 1
    assert "[worker 0] rows 4" in done.out
    assert "[worker 1] rows 4" in done.out
    first = done.err[done.err.index("Worker 1 failed first: ") :].splitlines()[0]
    assert "worker 1, replica 1, in step 5: assertion failed: [a feature is out of range]" in first
    assert "profile of steps 2 to 3 on worker 0, 1: tensorboard --logdir " in done.err
    for rank in (0, 1):
        file = profile_of(command.directory / "runs" / "first", "steps-2-3", rank)
        assert steps_in(file) == {2, 3}


def steps_in(file):
    """The numbers of the steps in a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    return {
        stat.int64_value or stat.uint64_value
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == "train"
        for stat in event.stats
        if plane.stat_metadata[stat.metadata_id].name == "step_num"
    }
