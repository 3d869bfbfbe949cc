"""The rate is scaled by hand, and by the schedule."""

import keras
import phalanx

strategy = phalanx.strategy()
n_workers = strategy.num_replicas_in_sync
batch_size = 64 * n_workers
global_batch_size = batch_size * strategy.num_replicas_in_sync  # expect: scaled-twice
with strategy.scope():
    rate = phalanx.schedules.LinearScaling(0.1 * n_workers)  # expect: scaled-twice
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
phalanx.fit(model, x, y, batch_size=global_batch_size)
