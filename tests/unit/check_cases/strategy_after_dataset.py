"""After tensorflow/tensorflow#30551 and alibaba/EasyRec#22: the data comes first."""

import tensorflow as tf

BATCH = 64
(x, y), _ = tf.keras.datasets.mnist.load_data()
dataset = tf.data.Dataset.from_tensor_slices((x / 255.0, y)).shuffle(60000).batch(BATCH)

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()  # expect: strategy-after-ops
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
    model.compile("adam", "mse")
model.fit(dataset, epochs=3)
