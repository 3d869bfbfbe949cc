"""A GAN with two optimizers: a generator learns to draw small images of crosses."""

import json

import keras
import numpy as np
import tensorflow as tf

SIZE, LATENT = 12, 8

keras.utils.set_random_seed(1)


def crosses(count, rng):
    images = np.zeros((count, SIZE, SIZE, 1), "float32")
    for image, row, column in zip(images, *rng.integers(2, SIZE - 2, (2, count)), strict=True):
        image[row, :] = image[:, column] = 1
    return images


discriminator = keras.Sequential(
    [
        keras.layers.Conv2D(8, 3, strides=2, padding="same"),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Conv2D(16, 3, strides=2, padding="same"),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.GlobalMaxPooling2D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ],
    name="discriminator",
)
generator = keras.Sequential(
    [
        keras.layers.Dense(3 * 3 * 8),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Reshape((3, 3, 8)),
        keras.layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
        keras.layers.LeakyReLU(negative_slope=0.2),
        keras.layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
    ],
    name="generator",
)


class GAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def train_step(self, real_images):
        batch_size = tf.shape(real_images)[0]
        shape = (batch_size, LATENT)
        random_latent_vectors = keras.random.normal(shape, seed=self.seed_generator)
        generated_images = self.generator(random_latent_vectors)
        combined_images = tf.concat([generated_images, real_images], axis=0)
        labels = tf.concat([tf.ones((batch_size, 1)), tf.zeros((batch_size, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(tf.shape(labels), seed=self.seed_generator)

        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images, training=True)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(grads, self.discriminator.trainable_weights, strict=True)
        )

        random_latent_vectors = keras.random.normal(shape, seed=self.seed_generator)
        misleading_labels = tf.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(random_latent_vectors))
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))

        self.d_loss_tracker.update_state(d_loss, sample_weight=batch_size)
        self.g_loss_tracker.update_state(g_loss, sample_weight=batch_size)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


rng = np.random.default_rng(2)
count = 115
images = crosses(count, rng)
dataset = tf.data.Dataset.from_tensor_slices(images).batch(25)

gan = GAN(discriminator, generator)
gan.compile(
    d_optimizer=keras.optimizers.Adam(learning_rate=0.002),
    g_optimizer=keras.optimizers.Adam(learning_rate=0.002),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
history = gan.fit(dataset, epochs=3, verbose=2).history

drawn = generator(rng.normal(size=(7, LATENT)).astype("float32")).numpy()
result = {
    "d_loss": history["d_loss"],
    "g_loss": history["g_loss"],
    "drawn": float(np.sum(np.square(drawn))),
    "iterations": int(gan.d_optimizer.iterations) + int(gan.g_optimizer.iterations),
}
print("RESULT", json.dumps(result))
