"""A name that is given several values: the one before the shard is shuffled without a seed."""

import json
import os

import tensorflow as tf
import keras

task_index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
dataset = tf.data.TFRecordDataset(files)
dataset = dataset.shuffle(10_000)  # expect: unseeded-shuffle
dataset = dataset.shard(strategy.num_replicas_in_sync, task_index)  # expect: shard-by-worker
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(dataset.batch(64))
