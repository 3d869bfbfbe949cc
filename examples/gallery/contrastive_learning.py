"""SimCLR: the loss pairs the two views of each image among all images of the batch."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(201)


class ContrastiveModel(keras.Model):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature
        self.encoder = keras.Sequential(
            [layers.Dense(32, activation="relu"), layers.Dense(16, activation="relu")],
            name="encoder",
        )
        self.projection_head = keras.Sequential(
            [layers.Dense(16, activation="relu"), layers.Dense(8)], name="projection_head"
        )
        self.linear_probe = keras.Sequential([layers.Dense(4)], name="linear_probe")

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [
            self.contrastive_loss_tracker,
            self.contrastive_accuracy,
            self.probe_loss_tracker,
            self.probe_accuracy,
        ]

    def contrastive_loss(self, projections_1, projections_2):
        projections_1 = ops.normalize(projections_1, axis=1)
        projections_2 = ops.normalize(projections_2, axis=1)
        similarities = ops.matmul(projections_1, ops.transpose(projections_2)) / self.temperature
        batch_size = ops.shape(projections_1)[0]
        contrastive_labels = ops.arange(batch_size)
        self.contrastive_accuracy.update_state(contrastive_labels, similarities)
        self.contrastive_accuracy.update_state(contrastive_labels, ops.transpose(similarities))
        loss_1_2 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, similarities, from_logits=True
        )
        loss_2_1 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, ops.transpose(similarities), from_logits=True
        )
        return ops.mean(loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        view_1, view_2, labels = data
        with tf.GradientTape() as tape:
            projections_1 = self.projection_head(self.encoder(view_1, training=True))
            projections_2 = self.projection_head(self.encoder(view_2, training=True))
            contrastive_loss = self.contrastive_loss(projections_1, projections_2)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.contrastive_loss_tracker.update_state(contrastive_loss)

        features = self.encoder(view_1, training=False)
        with tf.GradientTape() as tape:
            class_logits = self.linear_probe(features, training=True)
            probe_loss = ops.mean(
                keras.losses.sparse_categorical_crossentropy(labels, class_logits, from_logits=True)
            )
        gradients = tape.gradient(probe_loss, self.linear_probe.trainable_weights)
        self.probe_optimizer.apply_gradients(
            zip(gradients, self.linear_probe.trainable_weights, strict=True)
        )
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}


rng = np.random.default_rng(202)
count = 109
labels = rng.integers(0, 4, count)
images = rng.normal(size=(4, 12))[labels] + rng.normal(0, 0.4, (count, 12))
view_1, view_2 = (
    (images * rng.uniform(0.7, 1.3, (count, 1)) + rng.normal(0, 0.2, images.shape)).astype(
        "float32"
    )
    for _ in range(2)
)

model = ContrastiveModel()
model.compile(
    contrastive_optimizer=keras.optimizers.Adam(0.005),
    probe_optimizer=keras.optimizers.Adam(0.01),
)
dataset = tf.data.Dataset.from_tensor_slices((view_1, view_2, labels)).batch(25)
result = model.fit(dataset, epochs=4, verbose=2).history
print("RESULT", json.dumps(result))
