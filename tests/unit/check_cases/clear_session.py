"""A loop over settings clears the session, and the strategy with it."""

import keras
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
tf.distribute.experimental_set_strategy(strategy)
for units in (10, 20):
    keras.backend.clear_session()  # expect: clear-session
    model = keras.Sequential([keras.layers.Dense(units)])
    model.compile(keras.optimizers.Adam(), "mse")
    model.fit(x, y)
