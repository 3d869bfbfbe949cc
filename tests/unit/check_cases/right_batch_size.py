"""Sizes of a batch that follow from the batch, or that name it where no worker has a part."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

BATCH_SIZE = 32
LATENT = 8


class Sampler(keras.layers.Layer):
    def call(self, means):
        batch_size = ops.shape(means)[0]
        return means + keras.random.normal((batch_size, LATENT))


class Noisy(keras.layers.Layer):
    def build(self, shape):
        self.memory = self.add_weight(shape=(BATCH_SIZE, 3))

    def call(self, x):
        return x + keras.random.normal((LATENT, 3)) + ops.reshape(x, (-1, BATCH_SIZE))


class GAN(keras.Model):
    def sample(self, batch_size):
        return tf.random.normal((batch_size, LATENT))

    def train_step(self, real):
        batch_size = tf.shape(real)[0]
        return self.learn(self.sample(batch_size), tf.ones((batch_size, 1)))


fixed = tf.random.normal((BATCH_SIZE, LATENT))
keras.Model().fit(np.zeros((64, 3)), batch_size=BATCH_SIZE)
