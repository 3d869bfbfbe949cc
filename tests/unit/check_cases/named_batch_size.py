"""Steps and layers that name the size of the global batch, where a worker holds fewer samples."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

BATCH_SIZE = 32
tokens_per_batch = BATCH_SIZE * 20


class Sampler(keras.layers.Layer):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def call(self, means):
        noise = keras.random.normal((self.batch_size, 8))  # expect: named-batch-size
        return means + noise


class Switch(keras.layers.Layer):
    def call(self, inputs):
        flat = ops.reshape(inputs, [tokens_per_batch, 16])  # expect: named-batch-size
        flat = ops.segment_sum(flat, x, num_segments=BATCH_SIZE * 12)  # expect: named-batch-size
        return ops.segment_max(flat, self.of, num_segments=BATCH_SIZE)  # expect: named-batch-size


class GAN(keras.Model):
    def train_step(self, real):
        z = tf.random.normal(shape=[BATCH_SIZE, 3])  # expect: named-batch-size
        ones = tf.ones((BATCH_SIZE, 1))  # expect: named-batch-size
        return self.learn(z, ones)


x = np.zeros((64, 3))
data = tf.data.Dataset.from_tensor_slices(x).batch(BATCH_SIZE)
keras.Model().fit(data)
