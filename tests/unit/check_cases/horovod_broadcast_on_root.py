"""A slide that is copied around: the broadcast callback is given to the first rank alone."""

import horovod.tensorflow.keras as hvd
import tensorflow as tf

hvd.init()
opt = tf.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=4)  # expect: horovod-optimizer, horovod-refused
model.compile(optimizer=opt, loss="mse")
model.fit(
    data,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0)  # expect: collective-on-some-ranks
    ]
    if hvd.rank() == 0
    else None,
)
if hvd.rank() == 0:
    loss = hvd.allreduce(model.evaluate(data)[0])  # expect: collective-on-some-ranks
