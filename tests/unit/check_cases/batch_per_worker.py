"""The batch is divided by hand, as Horovod's and PyTorch's users are used to."""

import keras
import tensorflow as tf

GLOBAL_BATCH = 256
strategy = tf.distribute.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
per_replica = GLOBAL_BATCH // strategy.num_replicas_in_sync  # expect: batch-per-worker
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(x, y, batch_size=per_replica)
model.fit(data.batch(GLOBAL_BATCH // replicas))  # expect: batch-per-worker
model.fit(data, steps_per_epoch=500 // replicas)  # expect: steps-per-worker
