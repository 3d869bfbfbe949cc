"""Contrastive losses, as in SimCLR, CLIP and the examples of metric learning."""

import keras
import tensorflow as tf
from keras import ops


class Contrastive(keras.Model):
    def contrastive_loss(self, one, other):
        similarities = (
            ops.matmul(one, ops.transpose(other)) / self.temperature  # expect: loss-across-batch
        )
        labels = ops.arange(ops.shape(one)[0])
        return keras.losses.sparse_categorical_crossentropy(labels, similarities, from_logits=True)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        logits = tf.matmul(x, x, transpose_b=True)  # expect: loss-across-batch
        return keras.losses.categorical_crossentropy(logits, y)

    def train_step(self, data):
        similarities = ops.einsum("ae,pe->ap", data[0], data[1])  # expect: loss-across-batch
        labels = ops.arange(5)
        return {"loss": self.compute_loss(labels, similarities, None)}


class SupervisedContrastiveLoss(keras.losses.Loss):
    def call(self, labels, features):
        logits = features @ tf.transpose(features)  # expect: loss-across-batch
        return self.npairs(tf.squeeze(labels), logits)


class Recommender(keras.Model):
    def call(self, inputs):
        users, movies = self.user(inputs[:, 0]), self.movie(inputs[:, 1])
        return tf.sigmoid(ops.tensordot(users, movies, 2))  # expect: loss-across-batch


class OrthogonalRegularizer(keras.regularizers.Regularizer):
    def __call__(self, x):
        x = ops.reshape(x, (-1, 3, 3))
        xxt = ops.tensordot(x, x, axes=(2, 2))  # expect: loss-across-batch
        return ops.sum(ops.square(xxt - ops.eye(3)))


keras.layers.Dense(9, activity_regularizer=OrthogonalRegularizer())
