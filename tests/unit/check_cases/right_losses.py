"""Products in losses that stay within a row, and a contrastive loss over all workers' rows."""

import keras
import tensorflow as tf


class Tied(keras.Model):
    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        logits = tf.matmul(y_pred, self.embedding, transpose_b=True)
        scores = tf.einsum("bij,bkj->bik", y_pred, y_pred)
        return tf.reduce_mean(logits) + tf.reduce_mean(scores)

    def call(self, x):
        positions = tf.range(tf.shape(x)[1])
        return tf.matmul(x, tf.transpose(x, (0, 2, 1))) + positions


def gram(features):
    return tf.matmul(features, features, transpose_b=True)


def style_loss(one, other):
    return tf.reduce_mean(gram(one) - gram(other))


class Orthogonal(keras.regularizers.Regularizer):
    """Of a kernel, which has no rows."""

    def __call__(self, x):
        return tf.reduce_sum(tf.tensordot(x, x, axes=(1, 1)) ** 2)


keras.layers.Dense(9, kernel_regularizer=Orthogonal())
