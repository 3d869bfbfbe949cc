"""Small models and data for tests with a few replicas, and how close is close."""

import keras
import numpy as np
import pytest


def features(n, seed=0, width=4):
    return np.random.default_rng(seed).normal(size=(n, width)).astype("float32")


def targets(n, seed=0):
    return np.random.default_rng(seed + 100).normal(size=(n, 1)).astype("float32")


def small_model(optimizer=None, *, metrics=("mae",), seed=3, **compile_options):
    """A compiled model of two dense layers on four features, the same at every call."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    model.compile(optimizer, loss="mse", metrics=list(metrics), **compile_options)
    return model


class OwnStep(keras.Sequential):
    """A train_step of one's own, as Keras's guide has it."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="new in Keras 3.15"
)


def values(variables):
    return [np.array(v.numpy()) for v in variables]


def assert_close(got, expected, tolerance=1e-5):
    """Arrays agree, relative to the largest entry of each."""
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
        assert a.shape == b.shape
        assert np.max(np.abs(a - b), initial=0) <= tolerance * max(
            np.max(np.abs(b), initial=0), 1e-3
        )


def on_replicas(strategy, function, *columns):
    """Run `function(*row)` on replica i with row i of `columns`; the results by replica."""
    import tensorflow as tf

    def per_replica(column):
        return strategy.experimental_distribute_values_from_function(
            lambda context: column[context.replica_id_in_sync_group]
        )

    arguments = [per_replica(column) for column in columns]

    @tf.function(autograph=False)
    def run(*arguments):
        return strategy.run(function, args=arguments)

    result = run(*arguments)
    flat = [strategy.experimental_local_results(v) for v in tf.nest.flatten(result)]
    return [
        tf.nest.pack_sequence_as(result, [v[min(i, len(v) - 1)] for v in flat])
        for i in range(strategy.num_replicas_in_sync)
    ]
