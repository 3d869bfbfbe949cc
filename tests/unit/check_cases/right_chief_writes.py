"""Right: every worker trains, the chief writes, a rank in a name is a place of its own."""

import json
import os

import keras
import numpy as np
import phalanx

strategy = phalanx.strategy()
rank = strategy.cluster_resolver.task_id
first = rank == 0
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
replicas = strategy.num_replicas_in_sync
rate = phalanx.schedules.LinearScaling(1e-3 * replicas, factor=1)
optimizer = keras.optimizers.Adam(rate)
with strategy.scope():
    model.compile(optimizer, "mse")
stop = keras.callbacks.EarlyStopping(patience=3)
keep = keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)
history = phalanx.fit(model, x, y, batch_size=64, callbacks=[stop, keep])
predictions = phalanx.predict(model, x)
np.save(f"predictions-{rank}.npy", predictions)
with open(f"log-{os.getpid()}.txt", "w") as file:
    file.write("mine")
if first:
    with open("history.json", "w") as file:
        json.dump(history.history, file)
    model.save("model.keras")
