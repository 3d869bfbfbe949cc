"""After huggingface/datasets#5696, in tf.data: shards of differently shuffled data."""

import tensorflow as tf
import keras
import os
import json

task = json.loads(os.environ["TF_CONFIG"])["task"]
task_index = task["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
num_workers = strategy.num_replicas_in_sync
dataset = tf.data.TFRecordDataset(files).shuffle(10_000)  # expect: unseeded-shuffle
dataset = dataset.map(decode)
dataset = dataset.shard(num_workers, task_index).batch(64)  # expect: shard-by-worker
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(dataset)
