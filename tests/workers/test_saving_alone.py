"""A worker saves a model on its own, while the others continue."""

import numpy as np
import pytest

from phalanx.testing import run_single


def train_and_save():
    import os
    import tempfile

    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx

    phalanx.enable()
    chief = tf.distribute.get_strategy().cluster_resolver.task_id == 0
    x = np.random.default_rng(0).random((24, 3)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    path = os.path.join(tempfile.mkdtemp(), "model.keras")
    callbacks = [keras.callbacks.ModelCheckpoint(path)] if chief else []
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    if chief:
        model.save(path)
        model.save_weights(path.replace(".keras", ".weights.h5"))
    loss = model.evaluate(x, x[:, :1], verbose=0)
    return os.path.exists(path), loss


def test_the_chief_saves_alone_and_training_continues(pool):
    (chief_saved, loss), (other_saved, same) = pool(2).run(train_and_save, deadline=600)
    assert chief_saved
    assert not other_saved
    assert loss == same


def export_everywhere(directory):
    import os

    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx

    phalanx.enable()
    chief = tf.distribute.get_strategy().cluster_resolver.task_id == 0
    x = np.random.default_rng(0).random((24, 4)).astype("float32")
    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
    model.fit(x, x[:, :3], batch_size=8, verbose=0)
    if chief:
        save_all_ways(model, os.path.join(directory, "chief"))
    save_all_ways(model, os.path.join(directory, "all"))
    model.fit(x, x[:, :3], batch_size=8, verbose=0)  # no one was left behind
    return x


def save_all_ways(model, path):
    model.export(path, verbose=False)
    model.save(f"{path}.keras")
    model.save_weights(f"{path}.weights.h5")


def answers(directory, x):
    """What the exported and the saved models give on one device."""
    import keras
    import tensorflow as tf

    found = []
    for name in ("chief", "all"):
        path = f"{directory}/{name}"
        model = keras.models.load_model(f"{path}.keras")
        exported = tf.saved_model.load(path)
        found.append(exported.serve(x).numpy())
        found.append(model(x).numpy())
        model.load_weights(f"{path}.weights.h5")
        found.append(model(x).numpy())
    return found


@pytest.mark.full
def test_a_model_is_exported_by_all_or_by_the_chief_alone(tmp_path, pool):
    x, _ = pool(2).run(export_everywhere, args=(str(tmp_path),), deadline=600)
    first, *others = run_single(answers, args=(str(tmp_path), x), deadline=600)
    for other in others:
        np.testing.assert_allclose(first, other, rtol=1e-6, atol=1e-7)
