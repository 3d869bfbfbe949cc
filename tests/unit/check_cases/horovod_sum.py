"""The learning rate grows twice: by hand, and by the sum of the gradients."""

import horovod.keras as hvd
from keras.optimizers import SGD

hvd.init()
rate = 0.01 * hvd.size()
optimizer = hvd.DistributedOptimizer(  # expect: horovod-optimizer
    SGD(rate * hvd.size()),  # expect: scaled-twice
    op=hvd.Sum,  # expect: horovod-refused
)
