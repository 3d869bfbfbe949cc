"""What the first step makes lazily is the chief's on every worker, however workers are seeded."""

import pytest

from phalanx.testing import WorkerGroupFailedError

WAYS = ["fit", "train_on_batch", "eagerly", "looked at", "own step"]


def trained(way, width_of_rank=lambda _: 3):
    """Whether weights were equal after each call; the log's warnings."""
    import logging
    import tempfile

    import keras
    import numpy as np

    import phalanx

    output = []
    handler = logging.Handler()
    handler.emit = lambda record: output.append(record.getMessage())
    logging.getLogger("phalanx").addHandler(handler)
    rank = phalanx.rank()
    keras.utils.set_random_seed(100 + rank)

    class Lazy(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = keras.layers.Dense(width_of_rank(rank)), keras.layers.Dense(1)

        def call(self, x):
            return self.last(self.first(x))

    class OwnStep(keras.Model):
        """Calls its layers in its step alone, so that they have no values while it is traced."""

        def __init__(self):
            super().__init__()
            self.first, self.last = keras.layers.Dense(3), keras.layers.Dense(1)

        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.last(self.first(x)) - y) ** 2)
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"loss": loss}

    model = OwnStep() if way == "own step" else Lazy()
    model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=way == "eagerly")
    x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    if way == "train_on_batch":
        phalanx.enable()
        model.train_on_batch(x, x[:, :1])
        phalanx.disable()
    else:
        callbacks = []
        if way == "looked at":
            callbacks = [
                phalanx.callbacks.GradientLogger(log_dir=tempfile.mkdtemp(), every_n_steps=1)
            ]
        phalanx.fit(model, x, x[:, :1], batch_size=5, verbose=0, callbacks=callbacks)
    everyones = phalanx.all_gather([w.tolist() for w in model.get_weights()])
    logging.getLogger("phalanx").removeHandler(handler)
    return everyones, [text for text in output if "different values" in text]


@pytest.mark.parametrize("way", WAYS)
def test_lazily_made_weights_are_the_chiefs(way, pool):
    (chiefs, warned), (others, silent) = pool(2).run(trained, args=(way,), deadline=300)
    assert chiefs[0] == chiefs[1] == others[0] == others[1]
    assert len(warned) == 1
    assert "worker 1 differs" in warned[0]
    assert silent == []


def other_widths():
    return trained("fit", lambda rank: 3 + rank)


def test_other_shapes_are_named(pool):
    with pytest.raises(WorkerGroupFailedError) as failed:
        pool(2).run(other_widths, deadline=300)
    assert "WorkerMismatchError" in str(failed.value)
    assert "lazy/dense" in str(failed.value)
