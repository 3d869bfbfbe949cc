"""Variables in shards on two servers against whole ones, after the same steps of one worker."""

import numpy as np
import pytest
from server_cluster import led

pytestmark = pytest.mark.timeout(1500)

OPTIMIZERS = {
    "momentum": lambda keras: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda keras: keras.optimizers.Adam(0.01, global_clipnorm=0.01),
    "adagrad": lambda keras: keras.optimizers.Adagrad(0.1),
    "rmsprop": lambda keras: keras.optimizers.RMSprop(0.01, weight_decay=0.01),
    "averages": lambda keras: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9),
    "clipnorm": lambda keras: keras.optimizers.SGD(0.1, clipnorm=0.01),
}


def data():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 101, size=(96, 2))
    return ids, rng.normal(size=(96, 1)).astype("float32")


def make(keras, optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(101, 4, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def trained(save_to=None):
    """Weights and slots after two epochs under each optimizer, and where the table is."""
    import keras

    import phalanx
    from phalanx.errors import ConfigurationError

    found = {}
    for name, optimizer in OPTIMIZERS.items():
        model = make(keras, optimizer(keras))
        history = phalanx.fit(model, *data(), batch_size=16, epochs=2, verbose=0)
        found[name] = {
            "weights": model.get_weights(),
            "slots": [np.array(v.numpy()) for v in model.optimizer.variables],
            "loss": history.history["loss"],
            "staleness": history.history.get("staleness"),
        }
        if name == "adam" and save_to:
            model.save_weights(f"{save_to}.weights.h5")
            model.save(f"{save_to}.keras")
            found["table"] = placed(model.get_layer("table").embeddings)
            slots = [v for v in model.optimizer.variables if "table" in v.path]
            found["predicted"] = phalanx.predict(model, data()[0], verbose=0)
            found["slots"] = [placed(v) for v in slots]
            with pytest.raises(ConfigurationError, match="must see a variable whole"):
                phalanx.fit(make(keras, keras.optimizers.Lamb()), *data(), verbose=0)
    return found


def placed(variable):
    """The rows and the server of each shard."""
    from phalanx.keras_compat.ps_variables import shards_of

    return [(int(s.shape[0]), s.device.split("/")[3]) for s in shards_of(variable)]


def alone():
    """The same on one device."""
    import keras

    import phalanx

    keras.utils.set_random_seed(1)
    phalanx.enable()
    return trained()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return str(tmp_path_factory.mktemp("kept") / "model")


@pytest.fixture(scope="module")
def sharded(kept):
    return led(lambda: trained(kept), workers=1, servers=2, sharding="fixed-shards:2")


@pytest.fixture(scope="module")
def whole():
    return led(trained, workers=1, servers=2, sharding="none")


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shards_train_as_a_complete_does(sharded, whole, name):
    for kind in ("weights", "slots"):
        for one, other in zip(sharded[name][kind], whole[name][kind], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert sharded[name]["loss"] == pytest.approx(whole[name]["loss"], rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_worker_trains_as_one_device_does(whole, name):
    from phalanx.testing import run_single

    expected = _alone(run_single)[name]
    for one, other in zip(whole[name]["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert whole[name]["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert whole[name]["staleness"] == [0.0, 0.0]


_found = {}


def _alone(run_single):
    if not _found:
        _found.update(run_single(alone, deadline=600, seed=1))
    return _found


@pytest.mark.full
def test_slots_are_where_their_shards_are(sharded):
    assert sharded["table"] == [(51, "task:0"), (50, "task:1")] or sharded["table"] == [
        (51, "task:1"),
        (50, "task:0"),
    ]
    assert sharded["slots"] == [sharded["table"]] * 2


@pytest.mark.full
def test_what_was_saved_from_shards_is_complete_on_one_device_and_on_three_servers(sharded, kept):
    def restored():
        import keras

        import phalanx

        model = make(keras, keras.optimizers.Adam(0.01))
        model.load_weights(f"{kept}.weights.h5")
        loaded = keras.saving.load_model(f"{kept}.keras")
        predicted = phalanx.predict(loaded, data()[0], verbose=0)
        slots = [np.array(v.numpy()) for v in loaded.optimizer.variables]
        return model.get_weights(), predicted, slots

    def on_one_device():
        from phalanx.testing import run_single

        return run_single(restored, deadline=600)

    three = led(restored, workers=1, servers=3, sharding="fixed-shards:3")
    for weights, predicted, slots in (on_one_device(), three):
        for one, other in zip(weights, sharded["adam"]["weights"], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(predicted, sharded["predicted"], rtol=1e-4)
        for one, other in zip(slots, sharded["adam"]["slots"], strict=True):
            np.testing.assert_array_equal(one, other)
