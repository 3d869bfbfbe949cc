"""`tf.optimizers` is Keras's: an optimizer in a variable, before the scope."""

import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
opt = tf.optimizers.SGD(0.1)  # expect: optimizer-outside-scope
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(opt, tf.losses.MeanSquaredError())
