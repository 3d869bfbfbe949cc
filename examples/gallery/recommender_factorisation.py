"""Collaborative filtering: an embedding and a bias for each user and each film."""

import json

import keras
import numpy as np
from keras import layers, ops

USERS, FILMS, WIDTH = 40, 60, 6

keras.utils.set_random_seed(131)


class RecommenderNet(keras.Model):
    def __init__(self, users, films, width, **kwargs):
        super().__init__(**kwargs)
        regularizer = keras.regularizers.l2(1e-5)
        self.user_embedding = layers.Embedding(users, width, embeddings_regularizer=regularizer)
        self.user_bias = layers.Embedding(users, 1)
        self.film_embedding = layers.Embedding(films, width, embeddings_regularizer=regularizer)
        self.film_bias = layers.Embedding(films, 1)

    def call(self, inputs):
        user, film = inputs[:, 0], inputs[:, 1]
        match = ops.sum(self.user_embedding(user) * self.film_embedding(film), 1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(user) + self.film_bias(film))


rng = np.random.default_rng(132)
count = 411
pairs = np.stack([rng.integers(0, USERS, count), rng.integers(0, FILMS, count)], axis=1)
taste = rng.normal(size=(USERS, 2)), rng.normal(size=(FILMS, 2))
ratings = 1 / (1 + np.exp(-np.sum(taste[0][pairs[:, 0]] * taste[1][pairs[:, 1]], axis=1)))
ratings = ratings.astype("float32")

model = RecommenderNet(USERS, FILMS, WIDTH)
model.compile(
    loss=keras.losses.BinaryCrossentropy(),
    optimizer=keras.optimizers.Adam(learning_rate=0.01),
    metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
)
history = model.fit(
    pairs[:350],
    ratings[:350],
    batch_size=61,
    epochs=4,
    validation_data=(pairs[350:], ratings[350:]),
    verbose=2,
).history

film_choice = np.stack([np.full(FILMS, 3), np.arange(FILMS)], axis=1)
scores = model.predict(film_choice, verbose=0).ravel()
result = {
    **history,
    "best": [float(score) for score in np.sort(scores)[-5:]],
    "vectors": float(np.linalg.norm(model.user_embedding.get_weights()[0])),
}
print("RESULT", json.dumps(result))
