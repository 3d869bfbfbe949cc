"""Retrieval with KerasRS: two towers of embeddings, and the best items."""

import json

import keras
import keras_rs
import numpy as np
import tensorflow as tf

USERS, ITEMS, SIZE = 20, 30, 8

keras.utils.set_random_seed(63)
rng = np.random.default_rng(63)
users, items = rng.integers(0, USERS, 150), rng.integers(0, ITEMS, 150)
ratings = ((users * 7 + items * 3) % 5).astype("float32")


class Retrieval(keras.Model):
    """Scores a user and an item by the product of their embeddings."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.user = keras.Sequential([layers.Embedding(USERS, SIZE), layers.Dense(SIZE)])
        self.item = keras.layers.Embedding(ITEMS, SIZE)
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=4, return_scores=False)

    def build(self, input_shape):
        self.user.build((None,))
        self.item.build((None,))
        self.retrieval.candidate_embeddings = self.item.embeddings
        self.retrieval.build((None, SIZE))
        super().build(input_shape)

    def call(self, inputs, training=False):
        user = self.user(inputs["user"])
        found = {"user": user}
        if training:
            found["item"] = self.item(inputs["item"])
        else:
            found["predictions"] = self.retrieval(user)
        return found

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        if not training:
            return tf.constant(0.0)
        score = keras.ops.sum(y_pred["user"] * y_pred["item"], axis=-1)
        return keras.ops.mean((score - x["rating"]) ** 2)


def batches(data):
    return tf.data.Dataset.from_tensor_slices(data).shuffle(150, seed=3).batch(16)


model = Retrieval()
model.compile(optimizer=keras.optimizers.Adagrad(0.5))
history = model.fit(
    batches({"user": users, "item": items, "rating": ratings}), epochs=3, verbose=0
).history
best = model.predict({"user": np.arange(USERS)}, verbose=0)["predictions"]
print("RESULT", json.dumps({**history, "best": np.array(best).tolist()}))
