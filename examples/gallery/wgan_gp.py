"""A Wasserstein GAN with gradient penalty, on points around a circle."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

LATENT = 4

keras.utils.set_random_seed(3)


def build_discriminator():
    return keras.Sequential(
        [
            layers.Dense(32, activation="tanh"),
            layers.Dense(32, activation="tanh"),
            layers.Dense(1),
        ]
    )


def build_generator():
    return keras.Sequential([layers.Dense(32, activation="tanh"), layers.Dense(2)])


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, discriminator_steps=3, gp_weight=10.0):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.d_steps = discriminator_steps
        self.gp_weight = gp_weight
        self.seed_generator = keras.random.SeedGenerator(9)

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, batch_size, real, fake):
        alpha = keras.random.uniform((batch_size, 1), seed=self.seed_generator)
        interpolated = real + alpha * (fake - real)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=1) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real):
        batch_size = tf.shape(real)[0]
        for _ in range(self.d_steps):
            noise = keras.random.normal((batch_size, LATENT), seed=self.seed_generator)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                fake_logits = self.discriminator(fake, training=True)
                real_logits = self.discriminator(real, training=True)
                d_cost = self.d_loss_fn(real_logits, fake_logits)
                gp = self.gradient_penalty(batch_size, real, fake)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(
                zip(d_gradient, self.discriminator.trainable_variables, strict=True)
            )
        noise = keras.random.normal((batch_size, LATENT), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            generated = self.generator(noise, training=True)
            g_loss = self.g_loss_fn(self.discriminator(generated, training=True))
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(
            zip(gen_gradient, self.generator.trainable_variables, strict=True)
        )
        return {"d_loss": d_loss, "g_loss": g_loss}


def discriminator_loss(real, fake):
    return tf.reduce_mean(fake) - tf.reduce_mean(real)


def generator_loss(fake):
    return -tf.reduce_mean(fake)


class PointMonitor(keras.callbacks.Callback):
    """Has the generator draw from the same noise after every epoch."""

    def __init__(self, noise):
        super().__init__()
        self.noise = noise
        self.radii = []

    def on_epoch_end(self, epoch, logs=None):
        points = self.model.generator(self.noise).numpy()
        self.radii.append(float(np.mean(np.linalg.norm(points, axis=1))))


rng = np.random.default_rng(4)
count = 145
angle = rng.uniform(0, 2 * np.pi, count)
points = 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1).astype("float32")

wgan = WGAN(build_discriminator(), build_generator())
wgan.compile(
    d_optimizer=keras.optimizers.Adam(0.002, beta_1=0.5, beta_2=0.9),
    g_optimizer=keras.optimizers.Adam(0.002, beta_1=0.5, beta_2=0.9),
    d_loss_fn=discriminator_loss,
    g_loss_fn=generator_loss,
)
monitor = PointMonitor(rng.normal(size=(9, LATENT)).astype("float32"))
dataset = tf.data.Dataset.from_tensor_slices(points).batch(29)
history = wgan.fit(dataset, epochs=4, verbose=2, callbacks=[monitor]).history
result = {"radii": monitor.radii, "d_loss": history["d_loss"], "g_loss": history["g_loss"]}
print("RESULT", json.dumps(result))
