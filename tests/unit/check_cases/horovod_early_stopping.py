"""After horovod/horovod#4027: the first rank stops, the others crash."""

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow.keras.callbacks import EarlyStopping, ModelCheckpoint

hvd.init()
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001))  # expect: horovod-optimizer
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(EarlyStopping(monitor="val_loss", patience=2))  # expect: callback-on-some-ranks
    callbacks.append(ModelCheckpoint("best.keras"))
model.compile(optimizer, "mse")
verbose = 1 if hvd.rank() == 0 else 0
model.fit(data, callbacks=callbacks, verbose=verbose)  # expect: verbose-by-rank
