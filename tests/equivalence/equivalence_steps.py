"""Models with a `train_step` of their own, as published scripts have them: nothing is built before.

None has a shape before its first batch, and most have no `call()`.
"""

import equivalence_models
import keras
import tensorflow as tf

import phalanx

L = keras.layers


def network(*units):
    return keras.Sequential(
        [*(L.Dense(n, activation="tanh") for n in units[:-1]), L.Dense(units[-1])]
    )


class Own(keras.Model):
    """Keeps the mean of what its steps call their loss."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")

    @property
    def metrics(self):
        return [self.seen]

    def descend(self, tape, loss, variables, optimizer=None):
        gradients = tape.gradient(loss, variables)
        (optimizer or self.optimizer).apply_gradients(zip(gradients, variables, strict=True))

    def note(self, loss):
        self.seen.update_state(loss)
        return {"seen": self.seen.result()}


class Adversaries(Own):
    """A GAN: two networks, two optimizers; its noise follows from the batch."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = network(8, 6), network(8, 1)
        self.critic_optimizer = keras.optimizers.Adam(0.01, clipnorm=0.1)
        self.generator_optimizer = keras.optimizers.RMSprop(0.01)

    def train_step(self, data):
        real = data[0]
        ones, zeros = tf.ones_like(real[:, :1]), tf.zeros_like(real[:, :1])
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        noise = tf.sin(10 * real[:, :3])
        with tf.GradientTape() as tape:
            output = self.critic(tf.concat([self.generator(noise), real], 0))
            of_critic = loss(tf.concat([ones, zeros], 0), output)
        self.descend(tape, of_critic, self.critic.trainable_weights, self.critic_optimizer)
        with tf.GradientTape() as tape:
            of_generator = loss(zeros, self.critic(self.generator(noise)))
        self.descend(tape, of_generator, self.generator.trainable_weights, self.generator_optimizer)
        return self.note(of_critic + of_generator)


class NamedBatchSize(Own):
    """A GAN whose step names the size of the batch: one row of noise and one label for each sample.

    The noise for a kernel, which has as many rows, is the same for all samples.
    """

    batch_size = 8

    def __init__(self):
        super().__init__()
        self.generator, self.critic = network(8, 6), network(8, 1)
        self.seeds = keras.random.SeedGenerator(5)
        self.mixing = self.add_weight(shape=(8, 6), initializer="glorot_uniform", trainable=False)

    def train_step(self, data):
        real = data[0]
        noise = keras.random.normal((self.batch_size, 3), seed=self.seeds)
        noise += 0.1 * tf.random.uniform([self.batch_size, 3], seed=4)
        more = keras.random.normal((8, 6), seed=self.seeds)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            hidden = self.generator.layers[0](noise)
            fake = hidden @ (self.mixing + 0.1 * more) + self.generator(noise)
            labels = [tf.ones((self.batch_size, 1)), tf.zeros((tf.shape(real)[0], 1))]
            output = self.critic(tf.concat([fake, real], 0))
            seen = loss(tf.concat(labels, 0), output)
        self.descend(tape, seen, self.trainable_weights)
        return self.note(seen)


class NamedSizeOfEvenBatches(Own):
    """A diffusion model's step: noise of a named size meets each sample of even batches."""

    batch_size = 8

    def __init__(self):
        super().__init__()
        self.network = network(8, 6)

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        noise = keras.random.normal((self.batch_size, 6), seed=3)
        times = keras.random.uniform(shape=(self.batch_size, 1), seed=4)
        with tf.GradientTape() as tape:
            output = self.network(times * x + (1 - times) * noise)
            loss = tf.reduce_mean((output - noise) ** 2)
        self.descend(tape, loss, self.network.trainable_weights)
        return self.note(loss)


class GradientPenalty(Own):
    """A WGAN's critic: a gradient by the input, for each row, within the loss."""

    def __init__(self):
        super().__init__()
        self.critic = network(8, 1)

    def train_step(self, data):
        x = data[0]
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = self.critic(x, training=True)
            slopes = tf.sqrt(tf.reduce_sum(inner.gradient(output, [x])[0] ** 2, axis=1) + 1e-6)
            loss = tf.reduce_mean(output) + 10 * tf.reduce_mean((slopes - 1) ** 2)
        self.descend(tape, loss, self.critic.trainable_weights)
        return self.note(loss)


class Divergence(L.Layer):
    """Adds its loss by `add_loss`, as a VAE's sampling layer does."""

    def call(self, mean, spread):
        terms = 1 + spread - mean**2 - keras.ops.exp(spread)
        self.add_loss(-0.05 * keras.ops.mean(keras.ops.sum(terms, axis=1)))
        return mean + keras.ops.exp(0.5 * spread) * keras.ops.sin(9 * mean)


class Autoencoder(keras.Model):
    """A VAE trained by `fit`'s own step, with `add_loss` and no shapes."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.divergence = network(8, 4), network(8, 6), Divergence()

    def call(self, x):
        mean, spread = keras.ops.split(self.encoder(x), 2, axis=1)
        return self.decoder(self.divergence(mean, spread))


class Regression(Own):
    """A network with a loss for each row."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 1)

    def losses(self, x, y):
        return (self.network(x)[:, 0] - tf.cast(y, tf.float32)) ** 2


class Unreduced(Regression):
    """Differentiates a loss for each row: TensorFlow takes the gradient of their sum."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self.losses(*data)
        self.descend(tape, losses, self.network.trainable_weights)
        return self.note(losses)


class SumOverRows(Regression):
    """A sum over the rows by a constant, and a sum that is none over rows."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self.losses(*data)
            decay = tf.add_n([tf.reduce_sum(w**2) for w in self.network.trainable_weights])
            loss = tf.reduce_sum(losses) / 8.0 + 0.01 * decay
        self.descend(tape, loss, self.network.trainable_weights)
        return self.note(loss)


class CountsOfRight(Regression):
    """Returns how many rows are right, as an integer and as a share of them."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            losses = self.losses(*data)
            loss = tf.reduce_mean(losses)
        self.descend(tape, loss, self.network.trainable_weights)
        right = tf.reduce_sum(tf.cast(losses < 1.0, tf.int32))
        share = right / tf.size(losses)
        wrong = tf.math.count_nonzero(losses >= 1.0)
        return {**self.note(loss), "right": right, "share": share, "wrong": wrong}


class MeanOfCounted(keras.Model):
    """A sum over some rows by how many they are, none on some workers; a tracker of its own."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 1)
        self.seen = keras.metrics.Mean(name="loss")

    def train_step(self, data):
        x, y = data
        counted = tf.cast(y == 1, tf.float32)
        with tf.GradientTape() as tape:
            losses = (self.network(x)[:, 0] - x[:, 0]) ** 2
            mean = tf.reduce_sum(losses * counted) / tf.maximum(tf.reduce_sum(counted), 1.0)
            decay = tf.add_n([tf.reduce_sum(w**2) for w in self.network.trainable_weights])
            loss = 3 * mean + 0.01 * decay
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.seen.update_state(loss)
        return {"loss": self.seen.result()}


class EverySecond(Regression):
    """A counter of steps decides whether one of them updates the weights."""

    def __init__(self):
        super().__init__()
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses(*data))
        weights = self.network.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.build(weights)
        self.count.assign_add(1)

        def update():
            self.optimizer.apply(gradients, weights)
            return 0

        tf.cond(tf.equal(self.count.value % 2, 0), update, lambda: 0)
        return self.note(loss)


class UnderOtherNames(Regression):
    """Returns what metrics report under names that are not the metrics'."""

    def __init__(self):
        super().__init__()
        self.trackers = [keras.metrics.Mean(name="total"), keras.metrics.AUC(name="area")]

    @property
    def metrics(self):
        return self.trackers

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = self.losses(x, y)
            loss = tf.reduce_mean(losses)
        self.descend(tape, loss, self.network.trainable_weights)
        total, area = self.trackers
        total.update_state(loss)
        area.update_state(y == 1, tf.sigmoid(losses))
        return {"loss": total.result(), "more": {"curve": area.result()}, "total": loss}


class MeanOfSelected(Regression):
    """Keras's loss of the rows that a mask selects, and a mean of others; none on some workers."""

    def train_step(self, data):
        x, y = data
        loss_of = keras.losses.MeanAbsoluteError()
        with tf.GradientTape() as tape:
            found, others = self.network(x), tf.where(y != 1)[:, 0]
            loss = loss_of(x[y == 1][:, :1], found[y == 1])
            loss += 2 * tf.reduce_mean(tf.gather(found, others) ** 2)
        self.descend(tape, loss, self.network.trainable_weights)
        return self.note(loss)


def sum_of_squares(y_true, y_pred):
    """A loss that `compile` gets, a sum over the rows."""
    return tf.reduce_sum((tf.cast(y_true, tf.float32) - y_pred) ** 2)


def mean_of_squares(y_true, y_pred):
    """A loss that `compile` gets, one number for the batch."""
    return tf.reduce_mean((tf.cast(y_true, tf.float32) - y_pred) ** 2)


def mean_of_ones(y_true, y_pred):
    """A loss that `compile` gets, a mean over the rows that a mask selects."""
    return tf.reduce_mean(tf.boolean_mask(y_pred, y_true == 1) ** 2)


def mean_of_tagged(y_true, y_pred):
    """The loss of TensorFlow's tutorial on transformers: label 0 is padding."""
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    mask = tf.cast(y_true != 0, tf.float32)
    return tf.reduce_sum(losses(y_true, y_pred) * mask) / tf.reduce_sum(mask)


def share_of_right(y_true, y_pred):
    """The accuracy beside it."""
    mask = tf.cast(y_true, tf.int64) != 0
    right = mask & (tf.argmax(y_pred, -1) == tf.cast(y_true, tf.int64))
    return tf.reduce_sum(tf.cast(right, tf.float32)) / tf.reduce_sum(tf.cast(mask, tf.float32))


class SumOfActivity(keras.Model):
    """`add_loss` of a sum over rows, in `fit`'s own step."""

    def __init__(self):
        super().__init__()
        self.network, self.last = network(8, 4), L.Dense(3)

    def call(self, x):
        inner = self.network(x)
        self.add_loss(0.01 * keras.ops.sum(inner**2))
        return self.last(inner)


class FunctionsInside(Own):
    """Its step, and what the step calls, are functions of TensorFlow's."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 3)

    @tf.function
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, self.network(x))
        return tape.gradient(loss, self.network.trainable_weights), loss

    @tf.function
    def train_step(self, data):
        gradients, loss = self.gradients(*data)
        variables = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self.note(loss)


class EmbeddedInside(FunctionsInside):
    """A function that the step calls looks rows up, and is given which by an argument."""

    def __init__(self):
        super().__init__()
        self.network = equivalence_models.WordsAndPlaces()

    def train_step(self, data):
        x, y = data
        return super().train_step((tf.cast(tf.abs(4 * x), tf.int32) % 12, y))


class Derived(Own):
    """Its step returns what it computes of results of metrics."""

    def __init__(self):
        super().__init__()
        self.network = network(8, 3)
        self.size = keras.metrics.MeanSquaredError(name="size")

    @property
    def metrics(self):
        return [self.seen, self.size]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            logits = self.network(x)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits)
        self.descend(tape, loss, self.network.trainable_weights)
        self.size.update_state(tf.zeros_like(logits), logits)
        logs = {**self.note(loss), "root": keras.ops.sqrt(self.size.result())}
        seen, size = self.seen.result(), self.size.result()
        return {**logs, "inner": {"sum": seen + 0.1 * size, "decibels": -10 * tf.math.log(size)}}


class TwoSides(Own):
    """Two networks, each for its features of a row, as CLIP has one for images and one for texts.

    What they give must be normalized: otherwise the last bias of `right` has no gradient in a
    contrastive loss, only rounding noise.
    """

    def __init__(self):
        super().__init__()
        self.left, self.right = network(8, 4), network(8, 4)

    def sides(self, x):
        return self.left(x[:, :3]), self.right(x[:, 3:])


class Contrast(TwoSides):
    """Every row against all rows of the global batch, as CLIP and SimCLR do."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            left, right = (
                phalanx.all_gather_batch(tf.math.l2_normalize(side, axis=1))
                for side in self.sides(data[0])
            )
            equally = tf.matmul(left, right, transpose_b=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                tf.range(tf.shape(equally)[0]), equally, from_logits=True
            )
            loss = self.reduce(losses)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(tf.reduce_mean(losses))

    def reduce(self, losses):
        return tf.reduce_mean(losses)


class UnreducedContrast(Contrast):
    """One loss for each gathered row, as published SimCLR hands them to the tape."""

    def reduce(self, losses):
        return 0.03 * losses


class SumOfContrast(Contrast):
    """The sum of the losses of gathered rows."""

    def reduce(self, losses):
        return 0.03 * tf.reduce_sum(losses)


class MadeInTheStep(Own):
    """Its network and optimizer are made by the first step, which TensorFlow lets plain ones be."""

    network = None

    def train_step(self, data):
        x, y = data
        if self.network is None:
            self.network = network(8, 3)
            self.inner = keras.optimizers.Adam(0.01)
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, self.network(x))
        self.descend(tape, loss, self.network.trainable_weights, self.inner)
        return self.note(loss)


class TwoKinds(Own):
    """Labelled rows beside more rows without labels."""

    def __init__(self):
        super().__init__()
        self.body, self.head = network(8, 8), network(3)

    def train_step(self, data):
        more, (x, y) = data
        with tf.GradientTape() as tape:
            output = self.head(self.body(x))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, output)
            loss += 0.1 * tf.reduce_mean(self.body(more) ** 2)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class ContrastOfTwoKinds(TwoKinds):
    """Rows of both kinds, put together, against the mean of all; a mean over tokens by a number."""

    def train_step(self, data):
        more, (x, _) = data
        with tf.GradientTape() as tape:
            output = phalanx.all_gather_batch(self.body(tf.concat([more, x], 0)))
            loss = tf.reduce_mean((output - tf.reduce_mean(output, axis=0)) ** 4)
            rows = more.shape[0] or tf.shape(more)[0]
            tokens = tf.reduce_sum(self.head(self.body(more)) ** 2, axis=1)
            loss += 0.1 * tf.reduce_sum(tokens) / tf.cast(rows * 3, tf.float32)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class MeanOfTwoKinds(TwoKinds):
    """Rows of both kinds, put together, against the mean of all; nothing is gathered."""

    def train_step(self, data):
        more, (x, _) = data
        with tf.GradientTape() as tape:
            output = self.body(tf.concat([more, x], 0))
            loss = tf.reduce_mean((output - tf.reduce_mean(output, axis=0)) ** 4)
        self.descend(tape, loss, self.body.trainable_weights)
        return self.note(loss)


class PseudoLabels(Own):
    """FixMatch: rows of both kinds put together, and taken apart for losses and for a metric."""

    def __init__(self):
        super().__init__()
        self.augment = keras.Sequential([L.GaussianNoise(0.1, seed=5), L.Dropout(0.2, seed=6)])
        self.network = keras.Sequential([L.Dense(8, activation="tanh"), L.Dense(3)])
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        self.confidence = keras.metrics.Mean(name="confidence")

    @property
    def metrics(self):
        return [self.seen, self.accuracy, self.confidence]

    def both(self, data):
        (x, y), more = data
        return y, tf.concat([x, more, 1.1 * more], axis=0), tf.shape(x)[0]

    def train_step(self, data):
        y, together, labelled = self.both(data)
        with tf.GradientTape() as tape:
            logits = self.network(self.augment(together, training=True))
            weak, strong = tf.split(logits[labelled:], 2)
            found = tf.argmax(tf.stop_gradient(weak), axis=1)
            loss = self.mean_loss(y, logits[:labelled]) + 0.5 * self.mean_loss(found, strong)
        self.descend(tape, loss, self.network.trainable_weights)
        self.accuracy.update_state(y, logits[:labelled])
        highest = tf.reduce_max(tf.nn.softmax(weak), axis=1)
        self.confidence.update_state(highest, sample_weight=highest - 0.3)
        found = {"accuracy": self.accuracy.result(), "confidence": self.confidence.result()}
        return {**self.note(loss), **found}

    def mean_loss(self, y, logits):
        return tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        )


class PseudoLabelsBehindMore(PseudoLabels):
    """The same where the first rows of the batch are more than the labelled ones."""

    def both(self, data):
        more, (x, y) = data
        return super().both(((self.augment(x, training=True), y), more))


class ClippedInTheStep(Regression):
    """Clips the global norm itself, as many published steps do."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.network(x) - tf.cast(y, tf.float32)[:, None]) ** 2)
        variables = self.trainable_weights
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self.note(loss)


class ClippedContrast(Contrast):
    """Clips a gradient that has crossed replicas in the backward pass."""

    def descend(self, tape, loss, variables):
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 0.1)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))


class Normalized(Regression):
    """Normalizes over the batch, in a step of its own."""

    def __init__(self):
        super().__init__()
        self.normalize = L.BatchNormalization(momentum=0.5)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            output = self.network(self.normalize(x, training=True))
            loss = tf.reduce_mean((output - tf.cast(y, tf.float32)[:, None]) ** 2)
        self.descend(tape, loss, self.trainable_weights)
        return self.note(loss)


class NormalizedClipped(Normalized):
    """Clips the gradient as well."""

    descend = ClippedContrast.descend


class SharpnessAware(Regression):
    """Takes the gradient where the loss is largest nearby (SAM, arXiv:2010.01412)."""

    def train_step(self, data):
        x, y = data
        gradients, loss = self.at_these_weights(x, y)
        norm = tf.linalg.global_norm(gradients) + 1e-12
        moves = [0.3 * gradient / norm for gradient in gradients]
        for variable, move in zip(self.trainable_weights, moves, strict=True):
            variable.assign_add(move)
        gradients, _ = self.at_these_weights(x, y)
        for variable, move in zip(self.trainable_weights, moves, strict=True):
            variable.assign_sub(move)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.note(loss)

    def at_these_weights(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.network(x) - tf.cast(y, tf.float32)[:, None]) ** 2)
        return tape.gradient(loss, self.trainable_weights), loss


class AccumulatesByHand(Regression):
    """Keeps gradients in variables for three steps, clips their mean and applies it."""

    def __init__(self):
        super().__init__()
        self.network.build((None, 6))
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.sums = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False)
            for v in self.network.trainable_weights
        ]

    def train_step(self, data):
        weights = self.network.trainable_weights
        self.optimizer.build(weights)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses(*data))
        for kept, gradient in zip(self.sums, tape.gradient(loss, weights), strict=True):
            kept.assign_add(gradient)
        self.steps.assign_add(1)
        tf.cond(tf.equal(self.steps.value % 3, 0), self.apply_mean, lambda: 0)
        return self.note(loss)

    def apply_mean(self):
        means = [tf.convert_to_tensor(kept) / 3 for kept in self.sums]
        means, _ = tf.clip_by_global_norm(means, 0.1)
        self.optimizer.apply(means, self.network.trainable_weights)
        for kept in self.sums:
            kept.assign(tf.zeros(kept.shape))
        return 0


class ReportsNorm(Regression):
    """Reports the norm of the gradient, of one step and as a mean over steps."""

    def __init__(self):
        super().__init__()
        self.norm = keras.metrics.Mean(name="norm")

    @property
    def metrics(self):
        return [self.seen, self.norm]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses(*data))
        weights = self.network.trainable_weights
        gradients = tape.gradient(loss, weights)
        norm = tf.linalg.global_norm(gradients)
        self.norm.update_state(norm)
        self.optimizer.apply(gradients, weights)
        return self.note(loss) | {"norm": self.norm.result(), "last_norm": norm}


class LeavesOutLarge(Regression):
    """Takes another branch where the gradient is large."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.losses(*data))
        weights = self.network.trainable_weights
        self.optimizer.build(weights)
        gradients = tape.gradient(loss, weights)

        def update():
            self.optimizer.apply(gradients, weights)
            return 0

        tf.cond(tf.linalg.global_norm(gradients) < 1.5, update, lambda: 0)
        return self.note(loss)


class AgainstAdversaries(Regression):
    """Trains on rows that are moved by the gradient of the mean loss, of that or of its square."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_mean(self.losses(x, y))
            move = inner.gradient(loss, x)
            moved = tf.reduce_mean(self.losses(x + 3.0 * tf.stop_gradient(move), y))
            total = moved + 20.0 * tf.reduce_mean(tf.reduce_sum(move**2, axis=1))
        self.descend(tape, total, self.network.trainable_weights)
        return self.note(total)


class LearnsToLearn(Regression):
    """Takes the gradient through a step of gradient descent (MAML, arXiv:1703.03400)."""

    def train_step(self, data):
        x, y = data
        y = tf.cast(y, tf.float32)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_mean(self.losses(x, y))
            weights = self.network.trainable_weights
            gradients = inner.gradient(loss, weights)
            moved = [w.value - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
            hidden = tf.tanh(x @ moved[0] + moved[1])
            loss = tf.reduce_mean(((hidden @ moved[2] + moved[3])[:, 0] - y) ** 2)
        self.descend(outer, loss, weights)
        return self.note(loss)


class ClipsEachStep(keras.optimizers.SGD):
    """An optimizer of the script's own that changes what it is given before it applies it."""

    def apply(self, grads, trainable_variables=None):
        gradients, _ = tf.clip_by_global_norm(list(grads), 0.1)
        super().apply(gradients, trainable_variables)
