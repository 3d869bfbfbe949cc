"""Horovod's rank and size, but Phalanx's fit: nothing here is Horovod's to share out."""

import horovod.tensorflow.keras as hvd
import keras

hvd.init()
BATCH = 128
data = data.shard(hvd.size(), hvd.rank())  # expect: shard-by-worker
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(data.batch(BATCH // hvd.size()), verbose=1 if hvd.rank() == 0 else 0)  # expect: batch-per-worker, verbose-by-rank
