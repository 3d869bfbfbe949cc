"""Layers and steps that keep what they see of the batch in variables, as published ones do."""

import keras
import tensorflow as tf
from equivalence_steps import Own, network
from keras import ops

L = keras.layers


class State(L.Layer):
    """Keeps something while it trains, and uses it at once."""

    def keep(self, name, shape, initializer="zeros", **more):
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, trainable=False, **more
        )


class Codebook(State):
    """A VQ-VAE's codes, as moving averages of what was nearest to each (arXiv:1711.00937)."""

    def build(self, shape):
        near = keras.initializers.RandomNormal(seed=5)
        self.codes = self.keep("codes", (5, shape[-1]), near)
        self.sums = self.keep("sums", (5, shape[-1]), near)
        self.counts = self.keep("counts", (5,), "ones")

    def call(self, x, training=False):
        distances = ops.sum(ops.square(x[:, None] - self.codes[None]), axis=-1)
        chosen = ops.one_hot(ops.argmin(distances, axis=1), 5)
        coded = ops.matmul(chosen, self.codes)
        if training:
            self.counts.assign(0.9 * self.counts + 0.1 * ops.sum(chosen, axis=0))
            self.sums.assign(0.9 * self.sums + 0.1 * ops.matmul(ops.transpose(chosen), x))
            self.codes.assign(self.sums / (self.counts[:, None] + 1e-3))
        self.add_loss(0.25 * ops.mean(ops.square(x - ops.stop_gradient(coded))))
        return x + ops.stop_gradient(coded - x)


class RunningMoments(State):
    """Mean, variance and largest of all rows so far, and how many they were."""

    def build(self, shape):
        self.mean = self.keep("mean", shape[-1:])
        self.variance = self.keep("variance", shape[-1:])
        self.largest = self.keep("largest", shape[-1:])
        self.number = self.keep("number", ())

    def call(self, x, training=False):
        if training:
            rows = ops.cast(ops.shape(x)[0], x.dtype)
            self.number.assign_add(rows)
            self.mean.assign_add((ops.mean(x, axis=0) - self.mean) * rows / self.number)
            self.variance.assign(0.8 * self.variance + 0.2 * ops.var(x, axis=0))
            self.largest.assign(ops.maximum(self.largest, ops.max(x, axis=0)))
        return (x - self.mean) / (1 + self.largest) + self.variance


class Center(State):
    """DINO's center (arXiv:2104.14294), in a variable of TensorFlow's, behind a dropout."""

    def build(self, shape):
        self.drop = L.Dropout(0.3, seed=4)
        self.center = tf.Variable(tf.zeros(shape[-1:]), trainable=False)

    def call(self, x, training=False):
        x = self.drop(x, training=training)
        if training:
            self.update(x)
        return x - self.center

    @tf.function
    def update(self, x):
        self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(x, axis=0))


class LastWords(State):
    """The mean of what a recurrent layer returns."""

    def build(self, shape):
        self.recurrent = L.LSTM(3)
        self.mean = self.keep("mean", (3,))

    def call(self, x, training=False):
        last = self.recurrent(ops.reshape(x, (-1, 2, 3)))
        if training:
            self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(last, axis=0))
        return last - self.mean


class FeatureQueue(Own):
    """Compares rows with those of earlier batches (MoCo, NNCLR), in two queues."""

    def __init__(self):
        super().__init__()
        self.encoder = network(8, 4)
        near = keras.initializers.RandomNormal(seed=3)
        self.queue = self.add_weight(shape=(24, 4), initializer=near, trainable=False)
        self.ring = self.add_weight(shape=(20, 4), initializer="zeros", trainable=False)
        self.place = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            features = ops.normalize(self.encoder(data[0]), axis=1)
            similar = ops.argmax(ops.matmul(features, ops.transpose(self.queue)), axis=1)
            nearest = ops.take(self.queue, similar, axis=0) + ops.mean(self.ring, axis=0)
            loss = ops.mean(ops.square(features - ops.stop_gradient(nearest)))
        self.descend(tape, loss, self.encoder.trainable_weights)
        rows = ops.shape(features)[0]
        self.queue.assign(ops.concatenate([features, self.queue[:-rows]], axis=0))
        places = (self.place.value + ops.arange(rows)) % 20
        self.ring.assign(ops.scatter_update(self.ring.value, places[:, None], features))
        self.place.assign((self.place.value + rows) % 20)
        return self.note(loss)


class BatchBefore(Own):
    """Compares each row with that in its place of the batch before, and with an average of them."""

    def __init__(self):
        super().__init__()
        self.encoder = network(8, 4)
        self.before = self.add_weight(shape=(8, 4), initializer="zeros", trainable=False)
        self.average = self.add_weight(shape=(8, 4), initializer="zeros", trainable=False)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            features = self.encoder(data[0])
            loss = tf.reduce_mean((features - self.before) ** 2)
            similar = tf.matmul(features, self.average, transpose_b=True)
            loss += tf.reduce_mean(tf.reduce_logsumexp(similar, axis=1))
        self.descend(tape, loss, self.encoder.trainable_weights)
        self.before.assign(features + 1)
        self.average.assign(0.9 * self.average + 0.1 * features)
        return self.note(loss)


class MemoryBank(Own):
    """Adds up the features of each label, and counts its rows (memory bank, arXiv:1805.01978)."""

    def __init__(self):
        super().__init__()
        self.encoder = network(8, 4)
        self.bank = tf.Variable(tf.zeros((3, 4)), trainable=False)
        self.seen_often = tf.Variable(tf.zeros((3,)), trainable=False)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            features = self.encoder(x)
            before = tf.gather(self.bank, y) / (1 + tf.gather(self.seen_often, y)[:, None])
            loss = tf.reduce_mean((features - 0.5 * before - 0.2) ** 2)
        self.descend(tape, loss, self.encoder.trainable_weights)
        self.bank.scatter_nd_add(y[:, None], features)
        self.seen_often.scatter_add(tf.IndexedSlices(tf.ones_like(features[:, 0]), y))
        return self.note(loss)


class AddsUpResults(Own):
    """Counts what its metric said, as the forward-forward algorithm does (arXiv:2212.13345)."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 1)
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.network(x) - tf.cast(y, tf.float32)[:, None]) ** 2)
            scaled = loss * (1 + 0.1 * self.total.value)
        self.descend(tape, scaled, self.network.trainable_weights)
        logs = self.note(loss)
        self.total.assign_add(0.1 * self.seen.result())
        return logs
