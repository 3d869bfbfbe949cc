"""Results are written by whoever comes."""

import json
import pickle

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
history = model.fit(x, y)
with open("history.json", "w") as file:  # expect: same-path
    json.dump(history.history, file)
with open("history.pkl", mode="wb") as file:  # expect: same-path
    pickle.dump(history.history, file)
np.save("predictions.npy", model.predict(x))  # expect: same-path
model.save("model.keras")  # expect: same-model-path
