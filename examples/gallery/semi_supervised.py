"""Semi-supervised learning: many unlabelled and few labelled rows in one step."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(211)


class Ladder(keras.Model):
    """Learns to give back what it sees of all rows, and to name the labelled ones."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Dense(20, activation="relu")])
        self.decoder = layers.Dense(9)
        self.classifier = layers.Dense(3)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.class_loss = keras.metrics.Mean(name="class_loss")
        self.reconstruction_loss = keras.metrics.Mean(name="reconstruction_loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [self.class_loss, self.reconstruction_loss, self.accuracy]

    def call(self, inputs):
        return self.classifier(self.encoder(inputs))

    def train_step(self, data):
        unlabelled, (labelled, labels) = data
        with tf.GradientTape() as tape:
            rebuilt = self.decoder(self.encoder(unlabelled))
            reconstruction = ops.mean(ops.square(rebuilt - unlabelled))
            logits = self(labelled, training=True)
            class_loss = self.loss_fn(labels, logits)
            loss = class_loss + 0.5 * reconstruction
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.class_loss.update_state(class_loss)
        self.reconstruction_loss.update_state(reconstruction)
        self.accuracy.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        inputs, labels = data
        logits = self(inputs, training=False)
        self.class_loss.update_state(self.loss_fn(labels, logits))
        self.accuracy.update_state(labels, logits)
        return {metric.name: metric.result() for metric in (self.class_loss, self.accuracy)}


rng = np.random.default_rng(212)
labels = rng.integers(0, 3, 290)
rows = (rng.normal(size=(3, 9))[labels] + rng.normal(0, 0.7, (290, 9))).astype("float32")

unlabelled = tf.data.Dataset.from_tensor_slices(rows[:210]).batch(42)
labelled = tf.data.Dataset.from_tensor_slices((rows[210:250], labels[210:250])).batch(8)
test = tf.data.Dataset.from_tensor_slices((rows[250:], labels[250:])).batch(21)

model = Ladder()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(
    tf.data.Dataset.zip((unlabelled, labelled)), epochs=4, validation_data=test, verbose=2
).history
print("RESULT", json.dumps(history))
