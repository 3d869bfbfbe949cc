"""A denoising autoencoder whose train_step differentiates an unreduced loss per row."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SIZE = 8

keras.utils.set_random_seed(241)


class DenoisingAutoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"), layers.Conv2D(4, 1)]
        )
        self.decoder = keras.Sequential(
            [
                layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu"),
                layers.Conv2D(1, 3, padding="same"),
            ]
        )

    def call(self, inputs):
        return self.decoder(self.encoder(inputs))

    def train_step(self, data):
        noisy, clean = data
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean(tf.square(self(noisy, training=True) - clean), axis=(1, 2, 3))
        gradients = tape.gradient(losses, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(losses)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(242)
count = 101
grid = np.mgrid[:SIZE, :SIZE][None]
centre = rng.uniform(1, SIZE - 2, (count, 2, 1, 1))
clean = np.exp(-np.sum((grid - centre) ** 2, axis=1) / 4)[..., None].astype("float32")
noisy = (clean + rng.normal(0, 0.2, clean.shape)).astype("float32")

autoencoder = DenoisingAutoencoder()
autoencoder.compile(optimizer=keras.optimizers.SGD(0.005, momentum=0.9))
history = autoencoder.fit(noisy, clean, batch_size=23, epochs=4, verbose=2).history
denoised = autoencoder.predict(noisy, batch_size=40, verbose=0)
result = {**history, "error": float(np.mean(np.square(denoised - clean)))}
print("RESULT", json.dumps(result))
