"""Structured data: preprocessing layers, embeddings of categories, imbalanced classes."""

import json

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(121)

rng = np.random.default_rng(122)
count = 213
JOBS = np.array(["baker", "carpenter", "driver", "farmer", "nurse"])
table = {
    "age": rng.integers(18, 80, count).astype("float32"),
    "income": rng.lognormal(3, 0.5, count).astype("float32"),
    "job": rng.choice(JOBS, count),
    "region": rng.integers(0, 7, count),
}
score = (
    (table["age"] - 50) / 15
    + np.log(table["income"])
    + (table["job"] == "nurse") * 1.5
    - (table["region"] % 3)
)
label = (score > np.quantile(score, 0.7)).astype("float32")


def dataframe_to_dataset(rows):
    features = {name: column[rows] for name, column in table.items()}
    return tf.data.Dataset.from_tensor_slices((features, label[rows]))


train_ds, val_ds = dataframe_to_dataset(slice(0, 161)), dataframe_to_dataset(slice(161, None))

normalizers = {name: layers.Normalization(axis=None) for name in ("age", "income")}
for name, normalizer in normalizers.items():
    normalizer.adapt(table[name][:161])
job_lookup = layers.StringLookup(output_mode="int")
job_lookup.adapt(table["job"][:161])


def preprocess(features, label):
    features = dict(features)
    features["job"] = job_lookup(features["job"])
    return features, label


train_ds = train_ds.batch(27).map(preprocess).prefetch(tf.data.AUTOTUNE)
val_ds = val_ds.batch(27).map(preprocess).prefetch(tf.data.AUTOTUNE)

inputs = {
    "age": keras.Input((), name="age"),
    "income": keras.Input((), name="income"),
    "job": keras.Input((), name="job", dtype="int64"),
    "region": keras.Input((), name="region", dtype="int64"),
}
encoded = [layers.Reshape((1,))(normalizers[name](inputs[name])) for name in normalizers]
encoded.append(layers.Embedding(job_lookup.vocabulary_size(), 3)(inputs["job"]))
encoded.append(layers.Embedding(7, 2)(inputs["region"]))
x = layers.concatenate(encoded)
x = layers.Dense(16, activation="relu")(x)
output = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, output)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss="binary_crossentropy",
    metrics=["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")],
)
history = model.fit(
    train_ds, epochs=5, validation_data=val_ds, class_weight={0: 1.0, 1: 2.5}, verbose=2
).history
result = {**history, "predicted": float(np.sum(model.predict(val_ds, verbose=0)))}
print("RESULT", json.dumps(result))
