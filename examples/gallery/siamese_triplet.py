"""A siamese network with a triplet loss: the batch is (anchor, positive, negative)."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(91)

embedding = keras.Sequential(
    [
        keras.Input((8,)),
        layers.Dense(24, activation="relu"),
        layers.Dense(24, activation="relu"),
        layers.Dense(4, use_bias=False),  # a bias would cancel out of all distances
    ],
    name="embedding",
)


class DistanceLayer(layers.Layer):
    def call(self, anchor, positive, negative):
        ap_distance = ops.sum(ops.square(anchor - positive), -1)
        an_distance = ops.sum(ops.square(anchor - negative), -1)
        return ap_distance, an_distance


inputs = [keras.Input((8,), name=name) for name in ("anchor", "positive", "negative")]
siamese_network = keras.Model(inputs, DistanceLayer()(*(embedding(each) for each in inputs)))


class SiameseModel(keras.Model):
    def __init__(self, siamese_network, margin=0.5):
        super().__init__()
        self.siamese_network = siamese_network
        self.margin = margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.siamese_network(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(
            zip(gradients, self.siamese_network.trainable_weights, strict=True)
        )
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self._compute_loss(data))
        return {"loss": self.loss_tracker.result()}

    def _compute_loss(self, data):
        ap_distance, an_distance = self.siamese_network(data)
        return ops.maximum(ap_distance - an_distance + self.margin, 0.0)

    @property
    def metrics(self):
        return [self.loss_tracker]


rng = np.random.default_rng(92)
count = 161
centres = rng.normal(size=(6, 8))
same, other = rng.integers(0, 6, (2, count))
other = np.where(other == same, (other + 1) % 6, other)
anchor, positive, negative = (
    (centres[which] + rng.normal(0, 0.5, (count, 8))).astype("float32")
    for which in (same, same, other)
)
triplets = tf.data.Dataset.from_tensor_slices((anchor, positive, negative))
train_dataset, val_dataset = triplets.take(119).batch(25), triplets.skip(119).batch(25)

siamese_model = SiameseModel(siamese_network)
siamese_model.compile(optimizer=keras.optimizers.Adam(0.0005))
history = siamese_model.fit(train_dataset, epochs=4, validation_data=val_dataset, verbose=2).history
similarity = keras.losses.cosine_similarity(
    embedding.predict(anchor, verbose=0), embedding.predict(positive, verbose=0)
)
result = {**history, "similarity": float(ops.mean(similarity))}
print("RESULT", json.dumps(result))
