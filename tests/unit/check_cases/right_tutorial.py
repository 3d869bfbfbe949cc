"""Right: TensorFlow's multi-worker tutorial, saving and all."""

import json
import os

import tensorflow as tf

os.environ["TF_CONFIG"] = json.dumps({"cluster": {}, "task": {"type": "worker", "index": 0}})
per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
global_batch_size = per_worker_batch_size * num_workers
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60000).repeat().batch(global_batch_size)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((28, 28)), tf.keras.layers.Dense(10)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.001), loss="mse")
model.fit(data, epochs=3, steps_per_epoch=4200 // num_workers)


def write_filepath(filepath, task_type, task_id):
    if task_type == "worker" and task_id == 0:
        return filepath
    return os.path.join(os.path.dirname(filepath), f"workertemp_{task_id}")


resolver = strategy.cluster_resolver
write_model_path = write_filepath("/tmp/keras-model", resolver.task_type, resolver.task_id)
model.save(write_model_path)
loaded = tf.keras.models.load_model("/tmp/keras-model")
