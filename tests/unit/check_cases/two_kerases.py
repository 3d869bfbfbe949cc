"""Callbacks of Keras 2 in a model of Keras 3."""

import keras
from tensorflow.python.keras.callbacks import EarlyStopping  # expect: two-kerases
from tf_keras.layers import Dense  # expect: two-kerases

model = keras.Sequential([Dense(1)])
