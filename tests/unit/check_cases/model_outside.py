"""A model and its optimizer are made first, and only compiled in the scope."""

import tensorflow as tf
from tensorflow.keras import layers, models
from tensorflow.keras.optimizers import Adam


def create_model():
    model = models.Sequential()  # expect: model-outside-scope
    model.add(layers.Dense(10))
    return model


strategy = tf.distribute.MirroredStrategy()
model = create_model()
optimizer = Adam(learning_rate=0.001)  # expect: optimizer-outside-scope
with strategy.scope():
    model.compile(optimizer=optimizer, loss="mse")
model.fit(x, y)
