"""A question of many forums: why does each worker train alone?"""

import json
import os

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
workers = {"worker": ["10.0.0.1:12345", "10.0.0.2:12345"]}
os.environ["TF_CONFIG"] = json.dumps(  # expect: tf-config-late
    {"cluster": workers, "task": {"type": "worker", "index": 0}}
)
os.environ.setdefault("TF_CONFIG", "{}")  # expect: tf-config-late
with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
