"""A search of KerasTuner's over widths and learning rates, with a given number of trials."""

import json
import os
import sys

import keras
import keras_tuner
import numpy as np

keras.utils.set_random_seed(64)
rng = np.random.default_rng(64)
x = rng.normal(size=(130, 6)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")


def make_model(hp):
    model = keras.Sequential(
        [
            keras.layers.Dense(hp.Int("units", 4, 16, step=4), activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    rate = hp.Choice("learning_rate", [1e-1, 1e-2, 1e-3])
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


tuner = keras_tuner.RandomSearch(
    make_model, "val_accuracy", max_trials=int(sys.argv[1]), seed=5, directory="found"
)
tuner.search(x[:100], y[:100], epochs=2, validation_data=(x[100:], y[100:]), verbose=0)
trials = tuner.oracle.get_best_trials(4)
best = tuner.get_best_models()[0]
result = {
    "trials": [[trial.hyperparameters.values, trial.score] for trial in trials],
    "evaluated": best.evaluate(x, y, verbose=0),
    "files": sorted(os.listdir("found/untitled_project")),
}
print("RESULT", json.dumps(result))
