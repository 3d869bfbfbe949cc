"""Small compiled models, as builders: each call makes a new one."""

import keras
import numpy as np

L = keras.layers


def compile_like(model, optimizer, *, loss, metrics, weighted_metrics=None, **more):
    model.compile(
        optimizer,
        loss=loss,
        metrics=metrics() if callable(metrics) else metrics,
        weighted_metrics=weighted_metrics() if callable(weighted_metrics) else weighted_metrics,
        **more,
    )
    return model


def logits_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense(
    optimizer,
    *,
    units=3,
    activation=None,
    loss=None,
    metrics=("accuracy",),
    weighted_metrics=None,
    freeze_first=False,
    jit_compile=False,
    run_eagerly=False,
    steps_per_execution=1,
    **layer,
):
    """A model of two dense layers on six features."""

    def build():
        first = L.Dense(8, activation="tanh", **layer)
        model = keras.Sequential([keras.Input((6,)), first, L.Dense(units, activation=activation)])
        first.trainable = not freeze_first
        return compile_like(
            model,
            optimizer(),
            loss=loss or logits_loss(),
            metrics=metrics if callable(metrics) else list(metrics),
            weighted_metrics=weighted_metrics,
            jit_compile=jit_compile,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
        )

    return build


def conv(*between):
    configs = [(type(layer), layer.get_config()) for layer in between]

    def build():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                L.Conv2D(3, 3, activation="relu"),
                *(kind.from_config(config) for kind, config in configs),
                L.MaxPooling2D(),
                L.Flatten(),
                L.Dense(3),
            ]
        )
        return compile_like(
            model, keras.optimizers.SGD(0.1), loss=logits_loss(), metrics=["accuracy"]
        )

    return build


def embedding(optimizer):
    def build():
        model = keras.Sequential(
            [keras.Input((5,)), L.Embedding(12, 4), L.GlobalAveragePooling1D(), L.Dense(3)]
        )
        return compile_like(model, optimizer(), loss=logits_loss(), metrics=["accuracy"])

    return build


def lstm_tagger(*between):
    """One label a time step; padded steps are masked, so their number weighs the loss."""
    configs = [(type(layer), layer.get_config()) for layer in between]

    def build():
        model = keras.Sequential(
            [
                keras.Input((5,)),
                L.Embedding(12, 4, mask_zero=True),
                L.LSTM(4, return_sequences=True),
                *(kind.from_config(config) for kind, config in configs),
                L.Dense(3),
            ]
        )
        return compile_like(
            model, keras.optimizers.SGD(0.5), loss=logits_loss(), metrics=["accuracy"]
        )

    return build


def two_in_two_out():
    def build():
        a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
        joined = L.Concatenate()([L.Dense(4, activation="tanh")(a), L.Dense(4)(b)])
        outputs = {"kind": L.Dense(3, name="kind")(joined), "size": L.Dense(1, name="size")(joined)}
        model = keras.Model({"a": a, "b": b}, outputs)
        return compile_like(
            model,
            keras.optimizers.Adam(0.01),
            loss={"kind": logits_loss(), "size": "mse"},
            loss_weights={"kind": 1.0, "size": 0.3},
            metrics={"kind": "accuracy", "size": "mae"},
        )

    return build


def clipped():
    return keras.optimizers.SGD(0.1, global_clipnorm=0.05)


def compiled(kind, optimizer=clipped, **more):
    def build():
        options = {"loss": logits_loss(), "metrics": ["accuracy"], **more}
        return compile_like(kind(), optimizer(), **options)

    return build


class LatentVector(L.Layer):
    """A vector drawn for each sample, as a variational autoencoder draws it."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, mean):
        rows, width = keras.ops.shape(mean)[0], keras.ops.shape(mean)[1]
        return mean + 0.3 * keras.random.normal((rows, width), seed=self.seed_generator)


def noisy(*layers, shape=(6,), head=(), **more):
    """A model of layers that draw random numbers; `layers` makes them."""

    def build():
        made = [layer() for layer in layers]
        tail = [layer() for layer in head] or [L.Dense(8, activation="tanh")]
        model = keras.Sequential([keras.Input(shape), *made, *tail, L.Dense(3)])
        return compile_like(
            model, keras.optimizers.SGD(0.1), loss=logits_loss(), metrics=["accuracy"], **more
        )

    return build


class LazyNoise(keras.Model):
    """What replicas assign equally is made in the first step."""

    def __init__(self):
        super().__init__()
        self.first, self.last = L.Dense(8, activation="tanh"), L.Dense(3)
        self.normalize = L.BatchNormalization(synchronized=True, momentum=0.5)
        self.drop = L.Dropout(0.3, seed=1)

    def call(self, x, training=None):
        x = self.normalize(self.first(x), training=training)
        return self.last(self.drop(x, training=training))


class WordsAndPlaces(keras.Model):
    """Words and their places in a sequence, embedded; the length is not known while traced."""

    def __init__(self):
        super().__init__()
        self.words, self.places = L.Embedding(12, 4), L.Embedding(9, 4)
        self.head = L.Dense(3)

    def call(self, x):
        places = self.places(keras.ops.arange(keras.ops.shape(x)[-1]))
        return self.head(keras.ops.mean(keras.ops.tanh(self.words(x) + places), axis=1))


class Lazy(keras.Model):
    """Knows its input only when it sees it."""

    def __init__(self):
        super().__init__()
        self.hidden = L.Dense(8, activation="tanh")
        self.out = L.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


class OwnTrainStep(Lazy):
    """The custom `train_step` of Keras's guide: compute_loss, and the compiled metrics."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(x)[0])
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


class HandWrittenLoss(Lazy):
    """The other custom `train_step` of Keras's guide: nothing of `compile` but the optimizer."""

    def __init__(self):
        super().__init__()
        self.loss_seen = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_seen]

    def own_loss(self, y, predicted):
        each = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
        return keras.ops.mean(each)

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.loss_seen.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.loss_seen.result()}

    def test_step(self, data):
        import tensorflow as tf

        x, y = data
        loss = self.own_loss(y, self(x, training=False))
        self.loss_seen.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"loss": self.loss_seen.result()}


class CountingMetric(keras.metrics.Metric):
    """A custom metric with state: the share of labels that are 1, and the samples seen."""

    def __init__(self, name):
        super().__init__(name=name)
        self.ones = self.add_weight(shape=(), initializer="zeros", name="ones")
        self.seen = self.add_weight(shape=(), initializer="zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = keras.ops.cast(y_true, "float32")
        self.ones.assign_add(keras.ops.sum(keras.ops.cast(y_true == 1, "float32")))
        self.seen.assign_add(keras.ops.cast(keras.ops.size(y_true), "float32"))

    def result(self):
        return self.ones / self.seen + self.seen

    def reset_state(self):
        self.ones.assign(0.0)
        self.seen.assign(0.0)


class RandomBatches(keras.utils.PyDataset):
    """Batches by index."""

    def __init__(self, n, batch_size):
        super().__init__()
        rng = np.random.default_rng(1)
        self.x, self.batch_size = rng.normal(size=(n, 6)).astype("float32"), batch_size
        self.y = rng.integers(0, 3, size=(n,))

    def __len__(self):
        return -(-len(self.x) // self.batch_size)

    def __getitem__(self, i):
        rows = slice(i * self.batch_size, (i + 1) * self.batch_size)
        return self.x[rows], self.y[rows]
