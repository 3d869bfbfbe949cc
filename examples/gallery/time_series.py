"""Time series: a GRU and a convolutional network predict a temperature from windows."""

import json

import keras
import numpy as np
from keras import layers

PAST = 20

keras.utils.set_random_seed(111)

rng = np.random.default_rng(112)
hours = np.arange(420)
season = np.sin(hours / 24 * 2 * np.pi)
weather = np.stack(
    [15 + 8 * season, 1000 + 5 * np.cos(hours / 60), 50 - 20 * season + hours / 50], axis=1
)
weather = (weather + rng.normal(0, 0.5, weather.shape)).astype("float32")

split = 300
mean, std = weather[:split].mean(axis=0), weather[:split].std(axis=0)
features = (weather - mean) / std


def windows(begin, end):
    return keras.utils.timeseries_dataset_from_array(
        features[begin : end - 1],
        features[begin + PAST : end, 0],
        sequence_length=PAST,
        sampling_rate=1,
        batch_size=43,
    )


dataset_train, dataset_val = windows(0, split), windows(split, len(features))

inputs = keras.Input((PAST, 3))
x = layers.Conv1D(8, 3, padding="causal", activation="relu")(inputs)
x = layers.GRU(12, dropout=0.1, recurrent_dropout=0.1)(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(0.005), loss="mse", metrics=["mae"])

path_checkpoint = "model_checkpoint.weights.h5"
history = model.fit(
    dataset_train,
    epochs=5,
    validation_data=dataset_val,
    verbose=2,
    callbacks=[
        keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=5),
        keras.callbacks.ModelCheckpoint(
            path_checkpoint, monitor="val_loss", save_weights_only=True, save_best_only=True
        ),
    ],
).history
model.load_weights(path_checkpoint)
forecast = model.predict(dataset_val, verbose=0)
result = {
    **history,
    "evaluated": model.evaluate(dataset_val, verbose=0),
    "forecast": float(np.mean(np.square(forecast))),
    "forecasts": len(forecast),
}
print("RESULT", json.dumps(result))
