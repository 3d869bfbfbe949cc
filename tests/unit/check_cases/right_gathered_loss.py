"""A contrastive loss over the rows of all workers."""

import keras
import tensorflow as tf

import phalanx


class Contrastive(keras.Model):
    def contrastive_loss(self, one, other):
        others = phalanx.all_gather_batch(other)
        return tf.reduce_mean(tf.matmul(one, others, transpose_b=True)) * len(range(3))
