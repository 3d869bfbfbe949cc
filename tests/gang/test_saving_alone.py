"""A worker saves a model by itself, while the others go on."""

from phalanx.testing import run_gang


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


def test_the_chief_saves_alone_and_training_goes_on():
    (chief_saved, loss), (other_saved, same) = run_gang(train_and_save, deadline=60)
    assert chief_saved
    assert not other_saved
    assert loss == same
