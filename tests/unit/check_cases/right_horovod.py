"""Right under `--strategy horovod`: the script of Horovod's own documentation."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
data = tf.data.Dataset.range(1000).shard(hvd.size(), hvd.rank()).batch(128 // hvd.size())
opt = tf.keras.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1)  # phalanx: ignore[horovod-optimizer]
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(loss="mse", optimizer=opt)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.keras"))
model.fit(data, steps_per_epoch=500 // hvd.size(), callbacks=callbacks, epochs=24)
if hvd.rank() == 0:
    print(model.evaluate(data))
