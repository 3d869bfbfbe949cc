"""A variational autoencoder: a model without `call`, with its own `train_step`."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SIZE, LATENT = 8, 2

keras.utils.set_random_seed(7)


class Sampling(layers.Layer):
    """Uses (z_mean, z_log_var) to draw z."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        batch, dim = ops.shape(z_mean)[0], ops.shape(z_mean)[1]
        epsilon = keras.random.normal(shape=(batch, dim), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


def build_encoder():
    inputs = keras.Input((SIZE, SIZE, 1))
    x = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(inputs)
    x = layers.Flatten()(x)
    x = layers.Dense(16, activation="relu")(x)
    z_mean = layers.Dense(LATENT, name="z_mean")(x)
    z_log_var = layers.Dense(LATENT, name="z_log_var")(x)
    z = Sampling()([z_mean, z_log_var])
    return keras.Model(inputs, [z_mean, z_log_var, z], name="encoder")


def build_decoder():
    inputs = keras.Input((LATENT,))
    x = layers.Dense(4 * 4 * 8, activation="relu")(inputs)
    x = layers.Reshape((4, 4, 8))(x)
    x = layers.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
    outputs = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    return keras.Model(inputs, outputs, name="decoder")


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [
            self.total_loss_tracker,
            self.reconstruction_loss_tracker,
            self.kl_loss_tracker,
        ]

    def train_step(self, images):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(images)
            reconstruction = self.decoder(z)
            reconstruction_loss = ops.mean(
                ops.sum(keras.losses.binary_crossentropy(images, reconstruction), axis=(1, 2))
            )
            kl_loss = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
            kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }


rng = np.random.default_rng(0)
count = 99
centre = rng.uniform(1, SIZE - 2, (count, 2, 1, 1))
grid = np.mgrid[:SIZE, :SIZE][None]
images = np.exp(-np.sum((grid - centre) ** 2, axis=1) / 3)[..., None].astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(images).batch(33)

vae = VAE(build_encoder(), build_decoder())
vae.compile(optimizer=keras.optimizers.Adam(learning_rate=0.003))
history = vae.fit(dataset, epochs=4, verbose=2).history

z_mean, _, _ = vae.encoder.predict(images, verbose=0)
decoded = vae.decoder.predict(np.array([[0.0, 0.0], [1.0, -1.0], [0.5, 2.0]]), verbose=0)
result = {
    **{name: values[-1] for name, values in history.items()},
    "z_mean": float(np.mean(np.abs(z_mean))),
    "decoded": float(np.sum(decoded)),
}
print("RESULT", json.dumps(result))
