"""Checkpoint under parameter servers: saved while all wait, restored by any strategy."""

import shutil

import numpy as np
import pytest
from server_cluster import led

from phalanx.testing import run_single

pytestmark = pytest.mark.timeout(1500)

SAMPLES, BATCH, EPOCHS = 101, 8, 4
STEPS = -(-SAMPLES // BATCH)
DATA = ["arrays", "dataset", "function", "endless"]


def make():
    """A model with a table big enough for shards, and a metric that counts each sample."""
    import keras
    import tensorflow as tf

    class Seen(keras.metrics.Metric):
        def __init__(self, name="seen", **kwargs):
            super().__init__(name=name, **kwargs)
            self.counts = self.add_weight(shape=(SAMPLES,), name="counts", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            numbers = tf.cast(y_true[:, 1], tf.int32)
            self.counts.assign(self.counts + tf.reduce_sum(tf.one_hot(numbers, SAMPLES), 0))

        def result(self):
            return tf.reduce_sum(tf.abs(self.counts - 1.0))

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            layers.Embedding(SAMPLES, 4, name="table"),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )

    def loss(y_true, y_pred):
        return tf.square(y_true[:, :1] - y_pred)

    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[Seen()])
    return model


def data(kind):
    """What `fit` is given."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x = rng.integers(0, SAMPLES, size=(SAMPLES, 2))
    y = np.stack([rng.normal(size=SAMPLES), np.arange(SAMPLES)], 1).astype("float32")
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": BATCH}

    def whole():
        return tf.data.Dataset.from_tensor_slices((x, y))

    if kind == "function":

        def of_context(context):
            mine = whole().shard(context.num_input_pipelines, context.input_pipeline_id)
            return mine.shuffle(SAMPLES).batch(BATCH)

        return {"x": of_context}
    batches = whole().shuffle(SAMPLES).batch(BATCH)
    if kind == "endless":
        return {"x": batches.repeat(), "steps_per_epoch": STEPS}
    return {"x": batches}


def train(kind, directory=None, *, break_off=None, every=5, **options):
    """Train for all epochs, or until so many steps are done; a run of its own each time."""
    import keras

    import phalanx
    from phalanx.callbacks import Checkpoint, every_n_steps

    class BrokenOffError(Exception):
        pass

    class BreakOff(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if self.steps == break_off:
                raise BrokenOffError

    model = make()
    callbacks = [BreakOff()]
    if directory:
        callbacks.append(Checkpoint(directory, every=every_n_steps(every), max_to_keep=99))
    try:
        history = phalanx.fit(
            model, epochs=EPOCHS, verbose=0, callbacks=callbacks, **data(kind), **options
        )
    except BrokenOffError:
        return None
    return {
        "weights": model.get_weights(),
        "history": history.history,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def steps_in(directory):
    import phalanx

    return [manifest.step for manifest in phalanx.checkpoint.list(directory)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def alone(place):
    """One worker, which has an order, undisturbed and broken off."""

    def run():
        found = {}
        for kind in DATA:
            directory = str(place / f"alone-{kind}")
            undisturbed = train(kind)
            assert train(kind, directory, break_off=STEPS + 9) is None
            found[kind] = undisturbed, steps_in(directory), train(kind, directory)
        return found

    return led(run, workers=1, servers=2, sharding="fixed-shards:2")


@pytest.mark.full
@pytest.mark.parametrize("kind", DATA)
def test_one_worker_continues_as_if_nothing_had_happened(alone, kind):
    undisturbed, saved, resumed = alone[kind]
    assert saved == [5, 10, 15, 20]
    for one, other in zip(resumed["weights"], undisturbed["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed["history"] == undisturbed["history"]
    assert resumed["iterations"] == undisturbed["iterations"] == EPOCHS * STEPS


@pytest.fixture(scope="module")
def broken_off(place):
    """Two workers and two servers, broken off in the middle of the second epoch."""

    def run():
        for kind in ("arrays", "dataset", "function"):
            assert train(kind, str(place / kind), break_off=STEPS + 9) is None
        return {kind: steps_in(place / kind) for kind in ("arrays", "dataset", "function")}

    return led(run, workers=2, servers=2, sharding="fixed-shards:2")


@pytest.fixture(scope="module")
def elsewhere(place, broken_off):
    """The same resumed by three workers and one server, which keeps the table whole."""
    for kind in broken_off:
        shutil.copytree(place / kind, place / f"{kind}-elsewhere")

    def run():
        import phalanx

        found = {}
        for kind in broken_off:
            directory = str(place / f"{kind}-elsewhere")
            trained = train(kind, directory)
            model = make()
            restored = phalanx.checkpoint.restore(model, directory)
            found[kind] = trained, restored.step, model.get_weights()
        return found

    return led(run, workers=3, servers=1, sharding="none")


@pytest.fixture(scope="module")
def on_one_device(place, broken_off, elsewhere):
    """The same resumed by one device, and what three workers ended with, restored there."""

    def run():
        import phalanx

        phalanx.enable()
        model = make()
        phalanx.checkpoint.restore(model, str(place / "dataset-elsewhere"))
        return train("arrays", str(place / "arrays")), model.get_weights()

    return run_single(run, deadline=600)


def test_it_is_saved_at_the_steps_asked_for(broken_off):
    for steps in broken_off.values():
        assert steps == [5, 10, 15, 20]


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_other_workers_train_what_is_left_of_a_pass(elsewhere, kind):
    trained, _, _ = elsewhere[kind]
    assert trained["history"]["seen"] == [0.0] * EPOCHS  # no sample twice, none left out
    assert trained["iterations"] == EPOCHS * STEPS


@pytest.mark.full
def test_a_pass_made_for_other_workers_restarts(elsewhere):
    trained, _, _ = elsewhere["function"]
    assert trained["history"]["seen"][2:] == [0.0] * (EPOCHS - 2)


@pytest.mark.full
def test_shards_are_restored_complete_on_one_server(elsewhere):
    trained, step, restored = elsewhere["arrays"]
    assert step == trained["iterations"]
    for one, other in zip(restored, trained["weights"], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.full
def test_one_device_continues_with_what_servers_saved(elsewhere, on_one_device):
    trained, restored = on_one_device
    assert trained["history"]["seen"] == [0.0] * EPOCHS
    assert trained["iterations"] == EPOCHS * STEPS
    for one, other in zip(restored, elsewhere["dataset"][0]["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
