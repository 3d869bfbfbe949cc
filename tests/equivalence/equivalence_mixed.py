"""Layers and steps that combine the rows of a batch, as published ones do: nothing is gathered."""

import keras
import numpy as np
import tensorflow as tf
from equivalence_steps import Own, TwoSides, network
from keras import ops

L = keras.layers


class InBatchNegatives(TwoSides):
    """Every other row of the batch is a negative, at a temperature that is trained (CLIP)."""

    def __init__(self):
        super().__init__()
        self.scale = self.add_weight(shape=(), initializer="ones")

    def train_step(self, data):
        with tf.GradientTape() as tape:
            left, right = (ops.normalize(side, axis=1) for side in self.sides(data[0]))
            similar = ops.matmul(left, ops.transpose(right)) * ops.exp(self.scale)
            rows = ops.arange(ops.shape(similar)[0])
            crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            loss = crossentropy(rows, similar) + crossentropy(rows, ops.transpose(similar))
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class NegativesOfConstants(TwoSides):
    """The same with the size of the batch as a constant, and its loss divided by its own size."""

    BATCH = 8

    def train_step(self, data):
        with tf.GradientTape() as tape:
            both = tf.math.l2_normalize(tf.concat(self.sides(data[0]), axis=0), axis=1)
            similar = tf.matmul(both, both, transpose_b=True) - 1e9 * tf.eye(2 * self.BATCH)
            rows = tf.range(self.BATCH)
            partners = tf.concat([rows + self.BATCH, rows], axis=0)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(partners, similar)
            loss = tf.reduce_sum(losses) / (2 * self.BATCH)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class SizeInPython(Own):
    """Asks for the number of rows as a number of Python's, and draws as many, as GANs do."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 1)
        self.seeds = keras.random.SeedGenerator(3)

    def train_step(self, data):
        x, y = data
        rows = x.shape[0]
        both = ops.concatenate([x, keras.random.normal((rows, x.shape[1]), seed=self.seeds)])
        labels = ops.concatenate([ops.cast(y, "float32"), ops.zeros(rows)])
        labels += 0.1 * keras.random.uniform(ops.shape(labels), seed=self.seeds)
        with tf.GradientTape() as tape:
            output = tf.reshape(self.network(both), [2 * rows])
            loss = tf.reduce_sum((output - labels) ** 2) / float(rows)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class LabelsOfConstants(Own):
    """A GAN with labels, latent places and an initial state for a constant number of rows."""

    BATCH = 8

    def __init__(self):
        super().__init__()
        self.generator, self.critic = network(8, 6), network(8, 1)
        self.memory = L.GRU(4)
        self.seeds = keras.random.SeedGenerator(3)

    def train_step(self, data):
        x, rows = data[0], (self.BATCH, 1)
        real, fake = tf.ones(rows), np.zeros(rows, "float32")  # before anything is drawn
        places = tf.tile(tf.linspace(0.0, 1.0, 3)[None], rows)
        noise = 0.1 * keras.random.normal((self.BATCH, 6), seed=self.seeds)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            made = self.generator(places)
            total = tf.reduce_mean((made - x) ** 2)
            total += loss(tf.concat([real, fake], 0), self.critic(tf.concat([x, noise], 0)))
            seen = self.memory(x[..., None], initial_state=tf.zeros((self.BATCH, 4)))
            total += loss(fake, self.critic(made + noise)) + tf.reduce_mean(seen**2)
        networks = (self.generator, self.critic, self.memory)
        variables = [one for each in networks for one in each.trainable_weights]
        self.descend(tape, total, variables)
        return self.note(total)


class FakesBesideReals(Own):
    """A GAN as in Keras's guides: labels of as many rows as the batch has, put together."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = network(8, 6), network(8, 1)
        self.seeds = keras.random.SeedGenerator(3)

    def train_step(self, data):
        rows = tf.shape(data[0])[0]
        made = self.generator(keras.random.normal((rows, 3), seed=self.seeds))
        both = tf.concat([made, data[0]], axis=0)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(tf.shape(labels), seed=self.seeds)
        with tf.GradientTape() as tape:
            loss = keras.losses.BinaryCrossentropy(from_logits=True)(labels, self.critic(both))
        self.descend(tape, loss, self.critic.trainable_weights)
        return self.note(loss)


class HalvesApart(Own):
    """Gives a layer some rows of the batch at a time, which no replica's own rows are."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 1)

    def train_step(self, data):
        x = data[0]
        half = tf.shape(x)[0] // 2
        turned = 0.7 * x + 0.3 * tf.concat([x[half:], x[:half]], axis=0)
        with tf.GradientTape() as tape:
            first, second = self.network(x[:half]), self.network(x[half:])
            loss = tf.reduce_mean(first**2) + tf.reduce_mean(tf.abs(second - 0.2))
            loss += tf.reduce_mean((self.network(turned) - self.network(x[:1])) ** 2)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class ClippedByRow(Own):
    """Clips the gradient of each row, as private training does (arXiv:1607.00133)."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 1)

    def train_step(self, data):
        x = data[0]
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((self.network(x) - x[:, :1]) ** 2, axis=1)
        variables = self.trainable_weights
        means = [self.mean_of_clipped(one) for one in tape.jacobian(losses, variables)]
        more = tf.vectorized_map(lambda row: self.gradient_of(row, variables), x)
        means = [a + self.mean_of_clipped(b) for a, b in zip(means, more, strict=True)]
        self.optimizer.apply_gradients(zip(means, variables, strict=True))
        return self.note(tf.reduce_mean(losses))

    def gradient_of(self, row, variables):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self.network(row[None])))
        return tape.gradient(loss, variables)

    def mean_of_clipped(self, gradients):
        by_row = tf.reshape(gradients, [tf.shape(gradients)[0], -1])
        clipped = tf.clip_by_norm(by_row, 0.1, axes=[1])
        return tf.reshape(tf.reduce_mean(clipped, axis=0), gradients.shape[1:])


class SampledSoftmax(Own):
    """Compares each row with its class and with drawn classes, as word2vec does."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 4)
        self.table = self.add_weight(shape=(9, 4), initializer="glorot_uniform")
        self.biases = self.add_weight(shape=(9,), initializer="zeros")

    def train_step(self, data):
        x, y = data
        classes = tf.cast(y, tf.int64)[:, None]
        drawn = tf.random.log_uniform_candidate_sampler(classes, 1, 4, True, 9, seed=5)
        with tf.GradientTape() as tape:
            table, biases = map(tf.convert_to_tensor, (self.table, self.biases))
            given = (table, biases, classes, self.network(x), 4, 9)
            losses = tf.nn.sampled_softmax_loss(*given, sampled_values=drawn)
            losses += tf.nn.nce_loss(*given, sampled_values=drawn)
            loss = tf.reduce_mean(losses)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class SpectrumOfRows(Own):
    """Takes the rows for a matrix, for one distribution and for a sequence."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 3)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            outputs = self.network(data[0])
            spectrum = tf.linalg.svd(tf.nn.softmax(outputs), compute_uv=False)
            distances = tf.reduce_sum((outputs[:, None] - outputs[None]) ** 2, axis=-1)
            kernel = tf.exp(-distances) + 0.1 * tf.eye(tf.shape(outputs)[0])
            loss = tf.reduce_sum(tf.nn.softmax(outputs[:, 0]) * outputs[:, 1])
            loss += tf.reduce_mean((tf.pad(outputs, [[1, 0], [0, 0]])[:-1] - outputs) ** 2)
            loss += tf.linalg.logdet(kernel) / 10 - tf.reduce_sum(spectrum) / 10
            loss += tf.reduce_mean(tf.abs(tf.signal.fft(tf.cast(outputs[:, 2], tf.complex64))))
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class RaggedTowers(Own):
    """A retrieval model: histories of any length, and every other item of the batch against it."""

    def __init__(self):
        super().__init__()
        self.words, self.items = L.Embedding(20, 4), L.Embedding(20, 4)
        self.items.build(())

    def train_step(self, data):
        history, texts, items = data["history"], tf.strings.split(data["texts"]), data["items"]
        with tf.GradientTape() as tape:
            mean = tf.reduce_mean(history.with_values(self.words(history.values)), axis=1)
            padded = tf.reduce_mean(self.words(history.to_tensor()), axis=1)
            ids = tf.strings.to_hash_bucket_fast(texts.values, 20)
            words = tf.reduce_sum(texts.with_values(self.words(ids)), axis=1)
            tags = tf.sparse.sparse_dense_matmul(data["tags"], self.items.embeddings)
            user = tf.math.l2_normalize(mean + padded + words + tags, axis=1)
            item = tf.math.l2_normalize(self.items(items), axis=1)
            same = tf.equal(data["texts"][:, None], data["texts"][None])  # no negative
            same = tf.linalg.set_diag(same, tf.zeros_like(same[0]))
            similar = tf.matmul(user, item, transpose_b=True) - 1e9 * tf.cast(same, tf.float32)
            rows = tf.range(tf.shape(similar)[0])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(rows, similar)
            loss = tf.reduce_mean(losses)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


def histories():
    """Data of `RaggedTowers`: 29 rows with up to four entries."""
    random = np.random.default_rng(3)
    lengths = random.integers(1, 5, 29)
    history = tf.RaggedTensor.from_row_lengths(random.integers(0, 20, lengths.sum()), lengths)
    texts = [" ".join("abcdefg"[one % 7] for one in row) for row in history.to_list()]
    rows = {
        "history": history,
        "texts": texts,
        "items": random.integers(0, 20, 29),
        "tags": tf.sparse.from_dense((random.random((29, 20)) < 0.2).astype("float32")),
    }
    return {"x": tf.data.Dataset.from_tensor_slices(rows).batch(8)}


class WordsOfRows(L.Layer):
    """Embeds the words of a text for each row, and their mean when padded to the longest text."""

    def build(self, shape):
        self.embedding = L.Embedding(50, 4)
        self.embedding.build(())

    def call(self, x):
        letters = tf.strings.as_string(tf.cast(tf.abs(x) * 4, tf.int32))
        texts = tf.strings.reduce_join(letters, axis=1, separator=" ")
        words = tf.strings.split(tf.strings.regex_replace(texts, "[01]", ""))
        ids = words.with_values(tf.strings.to_hash_bucket_fast(words.values, 50))
        padded = tf.reduce_mean(self.embedding(ids.to_tensor()), axis=1)
        return padded + tf.reduce_sum(words.with_values(self.embedding(ids.values)), axis=1)


class BarlowTwins(Own):
    """Correlations of features over the batch (arXiv:2103.03230), and a penalty on weights."""

    def __init__(self):
        super().__init__()
        # A last bias would have no gradient, only rounding noise.
        self.encoder = keras.Sequential([L.Dense(8, activation="tanh"), L.Dense(4, use_bias=False)])

    def train_step(self, data):
        with tf.GradientTape() as tape:
            one, other = (self.normalized(data[0] * scale) for scale in (1.0, 1.2))
            rows = ops.cast(ops.shape(one)[0], one.dtype)
            correlation = ops.matmul(ops.transpose(one), other) / rows
            similar = ops.sum(ops.square(ops.diagonal(correlation) - 1))
            unlike = ops.sum(ops.square(correlation)) - ops.sum(
                ops.square(ops.diagonal(correlation))
            )
            loss = similar + 0.05 * unlike + 1e-3 * tf.nn.l2_loss(self.encoder.layers[0].kernel)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)

    def normalized(self, x):
        features = self.encoder(x)
        return (features - ops.mean(features, axis=0)) / (ops.std(features, axis=0) + 0.1)


class HardestTriplets(Own):
    """The farthest row of a class against the nearest of another, with clipped gradients."""

    def __init__(self):
        super().__init__()
        self.encoder = network(8, 4)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            features = self.encoder(x)
            apart = ops.sum(ops.square(features[:, None] - features[None]), axis=-1)
            is_same = y[:, None] == y[None, :]
            farthest = ops.max(ops.where(is_same, apart, 0.0), axis=1)
            nearest = ops.min(ops.where(is_same, 1e3, apart), axis=1)
            loss = ops.mean(ops.relu(farthest - nearest + 0.5))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_weights), 0.3)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.note(loss)


class SpreadOfSelected(Own):
    """Compares the rows that a mask selects with each other."""

    def __init__(self):
        super().__init__()
        self.encoder = network(8, 3)

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            chosen = tf.boolean_mask(self.encoder(x), x[:, 0] > -0.3)
            root = tf.sqrt(tf.reduce_mean((chosen - 1) ** 2))
            loss = root + tf.reduce_mean(tf.matmul(chosen, chosen, transpose_b=True) ** 2)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class SlopePenalty(Own):
    """A penalty on the gradient by the rows, through operations whose gradients look mixed.

    TensorFlow takes the gradients of these apart by shapes and by numbers of rows.
    """

    def __init__(self):
        super().__init__()
        self.first, self.last = L.Dense(8, activation="tanh"), L.Dense(1)

    def critic(self, x):
        h = self.first(x)
        largest = tf.math.top_k(h * h, 3)[0]
        numbers = tf.range(tf.shape(h)[0])
        picked = tf.gather_nd(h * h, tf.stack([numbers, tf.argmax(h, 1, tf.int32)], axis=1))
        h = tf.concat([h, largest, tf.tile(h * h, [1, 2]), picked[:, None]], axis=1)
        return self.last(h)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as of_rows:
                of_rows.watch(x)
                found = self.critic(x)
            slopes = tf.reduce_sum(of_rows.gradient(found, x) ** 2, axis=1)
            apart = tf.reduce_mean((found[:, 0] - tf.cast(y, tf.float32)) ** 2)
            loss = apart + tf.reduce_mean(slopes)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class MirroredMixup(keras.Sequential):
    """Mixes each row with the one opposite (arXiv:1710.09412)."""

    def train_step(self, data):
        x, y = data
        y = ops.one_hot(y, 3)
        return super().train_step((0.7 * x + 0.3 * x[::-1], 0.7 * y + 0.3 * y[::-1]))


class ShuffledMixup(keras.Sequential):
    """Mixes each row with one drawn for it, by a share drawn for it, and adds noise."""

    def __init__(self, layers):
        super().__init__(layers)
        self.seeds = keras.random.SeedGenerator(5)
        self.numbers = tf.random.Generator.from_seed(7)

    def train_step(self, data):
        x, y = data
        y = ops.one_hot(y, 3)
        rows = tf.shape(x)[0]
        others = tf.random.shuffle(tf.range(rows), seed=2)
        share = keras.random.beta((rows, 1), 0.4, 0.4, seed=self.seeds)
        x += 0.1 * self.numbers.normal(tf.shape(x)) + tf.random.poisson(tf.shape(x), 0.1, seed=3)
        mixed = [share * each + (1 - share) * tf.gather(each, others) for each in (x, y)]
        return super().train_step(tuple(mixed))


class SizeInCall(keras.Model):
    """Repeats a weight for each row, of which it needs the number in Python."""

    def __init__(self):
        super().__init__()
        self.head = L.Dense(3)
        self.places = self.add_weight(shape=(1, 6), initializer="ones")

    def call(self, x):
        return self.head(x * tf.tile(self.places, [int(x.shape[0]), 1]))


class SizeInLayer(L.Layer):
    """The same as a layer of a model that waits for its first batch."""

    def build(self, shape):
        self.places = self.add_weight(shape=(1, shape[-1]), initializer="ones")

    def call(self, x):
        return x * tf.tile(self.places, [int(x.shape[0]), 1])


class NormalizesByHand(L.Layer):
    """A normalization over the batch that the script wrote, with moving moments."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False)
        self.variance = self.add_weight(shape=shape[-1:], initializer="ones", trainable=False)

    def call(self, x, training=False):
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = tf.nn.moments(x, [0])
            self.mean.assign(0.8 * self.mean + 0.2 * mean)
            self.variance.assign(0.8 * self.variance + 0.2 * variance)
        return (x - mean) / ops.sqrt(variance + 1e-2)


class Decorrelates(L.Layer):
    """Adds a loss on the covariance of what it passes on."""

    def call(self, x):
        apart = x - ops.mean(x, axis=0)
        covariance = ops.matmul(ops.transpose(apart), apart)
        self.add_loss(0.1 * ops.mean(ops.square(covariance)))
        return x


class Deviation(L.Layer):
    """Gives each row how the batch spreads (StyleGAN's minibatch standard deviation)."""

    def call(self, x):
        spread = ops.mean(ops.std(x, axis=0))
        return ops.concatenate([x, ops.ones_like(x[:, :1]) * spread], axis=-1)
