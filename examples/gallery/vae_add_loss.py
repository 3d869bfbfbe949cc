"""A variational autoencoder of layers, with the KL divergence added by `add_loss`."""

import json

import keras
import numpy as np
from keras import layers, ops

FEATURES, LATENT = 12, 3

keras.utils.set_random_seed(11)


class Sampling(layers.Layer):
    """Draws z, and adds the divergence from a normal distribution."""

    def __init__(self, weight, **kwargs):
        super().__init__(**kwargs)
        self.weight = weight
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, z_mean, z_log_var):
        divergence = ops.square(z_mean) + ops.exp(z_log_var) - z_log_var - 1
        self.add_loss(self.weight * 0.5 * ops.mean(ops.sum(divergence, axis=-1)))
        epsilon = keras.random.normal(shape=ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


class Encoder(layers.Layer):
    def __init__(self, latent, hidden=16, **kwargs):
        super().__init__(**kwargs)
        self.hidden = layers.Dense(hidden, activation="relu")
        self.mean = layers.Dense(latent)
        self.log_var = layers.Dense(latent)
        self.sampling = Sampling(weight=0.1)

    def call(self, inputs):
        x = self.hidden(inputs)
        return self.sampling(self.mean(x), self.log_var(x))


class Decoder(layers.Layer):
    def __init__(self, features, hidden=16, **kwargs):
        super().__init__(**kwargs)
        self.hidden = layers.Dense(hidden, activation="relu")
        self.out = layers.Dense(features)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


class VariationalAutoEncoder(keras.Model):
    def __init__(self, features, latent, **kwargs):
        super().__init__(**kwargs)
        self.encoder = Encoder(latent)
        self.decoder = Decoder(features)

    def call(self, inputs):
        return self.decoder(self.encoder(inputs))


rng = np.random.default_rng(5)
count = 111
x = (rng.normal(size=(count, 2)) @ rng.normal(size=(2, FEATURES))).astype("float32")

vae = VariationalAutoEncoder(FEATURES, LATENT)
vae.compile(optimizer=keras.optimizers.Adam(0.005), loss=keras.losses.MeanSquaredError())
history = vae.fit(x, x, batch_size=27, epochs=5, verbose=2).history
evaluated = vae.evaluate(x, x, batch_size=40, verbose=0)
result = {
    "loss": history["loss"],
    "evaluated": evaluated,
    "predicted": float(np.mean(np.square(vae.predict(x, verbose=0)))),
}
print("RESULT", json.dumps(result))
