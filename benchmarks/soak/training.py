"""The training that is disturbed: small, with all that must come back exactly.

    phalanx run ... training.py CHECKPOINTS RESULTS RETRIES arrays|pipeline

Dropout, shuffled data, a slot-keeping optimizer, metrics, validation, callbacks with a memory,
an uneven last batch, checkpoints in the middle of epochs.
"""

import hashlib
import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from phalanx.callbacks import Checkpoint, every_n_steps

EPOCHS, SAMPLES, BATCH = 6, 60, 7

checkpoints, results, retries, kind = sys.argv[1:]
rng = np.random.default_rng(0)
x = rng.normal(size=(SAMPLES, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
data = {"x": x, "y": y, "batch_size": BATCH}
if kind == "pipeline":
    data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20, seed=3).batch(BATCH)}
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.01, use_ema=True), "binary_crossentropy", metrics=["AUC"])
history = model.fit(
    **data,
    epochs=EPOCHS,
    validation_data=(x[:20], y[:20]),
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.5),
        Checkpoint(checkpoints, every=every_n_steps(4), max_to_keep=2, max_retries=int(retries)),
    ],
    verbose=0,
).history

digest = hashlib.sha256()
for variable in [*model.variables, *model.optimizer.variables]:
    digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
rank = tf.distribute.get_strategy().cluster_resolver.task_id
outcome = {
    "history": {n: list(map(float, v)) for n, v in history.items()},
    "sum": digest.hexdigest(),
}
(Path(results) / f"result-{rank}.json").write_text(json.dumps(outcome, sort_keys=True))
