"""After keras-team/keras#13751: answers from the days of TensorFlow 1."""

import tensorflow as tf
from tensorflow.compat.v1.keras import backend as K

tf.compat.v1.disable_eager_execution()  # expect: tf1-session
config = tf.compat.v1.ConfigProto()
config.gpu_options.allow_growth = True
session = tf.compat.v1.Session(config=config)  # expect: tf1-session
tf.keras.backend.set_session(session)  # expect: tf1-session
