"""Trainings that are broken off at a step and restarted: run by workers and by one device.

A case makes a model and trains it by the `train` that it is given, which adds a `Checkpoint`.
"""

import os
import pathlib

import numpy as np

CASES = {}


class BrokenOffError(Exception):
    pass


def case(function):
    CASES[function.__name__] = function
    return function


def data(rows=90):
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, 6)).astype("float32")
    return x, random.integers(0, 3, rows)


def classifier(optimizer=None, **compile_options):
    import keras

    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    chosen = optimizer or keras.optimizers.Adam(1e-2)
    model.compile(chosen, loss, metrics=["accuracy"], **compile_options)
    return model


def dataset(batch=16):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(data()).shuffle(90).batch(batch).prefetch(2)


def mapped_dataset():
    """Each worker maps its own rows only."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices(data()).map(lambda x, y: (x * 2, y))
    return rows.shuffle(90).batch(16).prefetch(2)


@case
def callbacks_and_averages(train):
    """Moving averages, callbacks with memories, validation."""
    import keras

    x, y = data()
    train(
        classifier(keras.optimizers.Adam(1e-2, use_ema=True, ema_overwrite_frequency=7)),
        x,
        y,
        batch_size=16,
        validation_split=0.2,
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.5),
        ],
    )


@case
def changed_as_epochs_begin(train):
    """Callbacks that change the rate and the weights where an epoch begins: it resumes at one."""
    import keras

    x, y = data()
    train(
        classifier(keras.optimizers.Adam(1e-2, use_ema=True)),
        x,
        y,
        batch_size=16,
        callbacks=[
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2),
            keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        ],
    )


@case
def remainders_accumulated(train):
    """A last batch of 2 samples, gradients of three steps in one update."""
    import keras

    x, y = data()
    optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3, global_clipnorm=1.0)
    train(classifier(optimizer), x, y, batch_size=11)


@case
def stateful_recurrent(train):
    """Layers whose states go from batch to batch."""
    import keras

    x, y = data(80)
    keras.utils.set_random_seed(3)
    layers = keras.layers
    recurrent = [layers.GRU(4, stateful=True, return_sequences=True), layers.LSTM(3, stateful=True)]
    model = keras.Sequential([layers.Reshape((3, 2)), *recurrent, layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    train(model, x, y, batch_size=16, shuffle=False)


@case
def clipped_by_percentile(train):
    """A clipper that remembers norms, under a loss scale."""
    import keras

    import phalanx

    x, y = data()
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    phalanx.clip.attach(inner, phalanx.clip.clip_by_percentile(50.0, window=4))
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0, dynamic_growth_steps=5)
    train(classifier(scaled), x, y, batch_size=16)


@case
def several_steps_a_call(train):
    x, y = data()
    train(classifier(steps_per_execution=4), x, y, batch_size=8)


@case
def pipeline(train):
    """A tf.data pipeline, shuffled again each time."""
    train(classifier(), mapped_dataset())


@case
def pipeline_read_again(train):
    """The same, by leaving out what was read before."""
    train(classifier(), dataset(), checkpoint={"data": "skip"})


@case
def pipeline_across_epochs(train):
    """A pass over the data ends in the middle of an epoch."""
    train(classifier(), dataset().repeat(), steps_per_epoch=4)


@case
def generated(train):
    """Data whose length no one knows, made by Python."""
    import tensorflow as tf

    def generate():
        x, y = data()
        for i in range(7):
            yield x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]

    specs = tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int64)
    train(classifier(), tf.data.Dataset.from_generator(generate, output_signature=specs))


@case
def on_any_number(train):
    """Nothing that depends on how samples are dealt out: for continuing with other workers."""
    import keras

    keras.utils.set_random_seed(3)
    x, y = data()
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    train(model, x, y, batch_size=16, callbacks=[keras.callbacks.EarlyStopping("loss", patience=2)])


def breaks_off(at_step):
    """A callback that ends the training when the optimizer has counted so many steps."""
    import keras

    class BreakOff(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) >= at_step:
                raise BrokenOffError

    return BreakOff()


@case
def stateful_random_numbers(train):
    """Draws of tf.random, in the step and in a branch of it."""
    import keras
    import tensorflow as tf

    class Noise(keras.layers.Layer):
        def call(self, x, training=False):
            if not training:
                return x
            x = x + 0.1 * tf.random.normal(tf.shape(x))
            scale = tf.random.uniform([])
            return tf.cond(scale > 0.5, lambda: x * tf.random.uniform([], 0.9, 1.1), lambda: x)

    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((6,)), Noise(), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    train(model, *data(), batch_size=16)


def run(name, directory, *, every, break_at=None, epochs=4):
    """Train a case to its end, or until it is broken off; what it has come to."""
    import phalanx
    from phalanx.callbacks import Checkpoint, every_n_steps

    result, logs = {}, []
    os.makedirs(directory, exist_ok=True)

    def train(model, *given, callbacks=(), checkpoint=None, **options):
        import keras

        callbacks = list(callbacks)
        saving = {"every": every_n_steps(every), "max_to_keep": 100, "async_save": False}
        callbacks.append(Checkpoint(directory, **saving, **(checkpoint or {})))
        log = os.path.join(directory, "log.csv")
        logs.append(keras.callbacks.CSVLogger(log))
        callbacks.append(logs[-1])
        if break_at is not None:
            callbacks.append(breaks_off(break_at))
        history = phalanx.fit(
            model, *given, callbacks=callbacks, epochs=epochs, verbose=0, **options
        )
        result["weights"] = [v.numpy() for v in model.weights]
        result["optimizer"] = [v.numpy() for v in model.optimizer.variables]
        result["history"] = history.history
        result["epochs"] = history.epoch
        result["drawn"] = float(np.random.rand())
        result["log"] = pathlib.Path(log).read_text()

    try:
        CASES[name](train)
    except BrokenOffError:
        for (
            opened
        ) in logs:  # the process that this stands for would have ended, and its files closed
            opened.csv_file.close()
        return None
    return result
