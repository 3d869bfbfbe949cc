"""A habit from saving: everything but the model stands under a condition on the rank."""

import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task_type = strategy.cluster_resolver.task_type
task_id = strategy.cluster_resolver.task_id


def _is_chief(task_type, task_id):
    return task_type == "chief" or (task_type == "worker" and task_id == 0)


is_chief = _is_chief(task_type, task_id)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
if is_chief:
    model.fit(x, y)  # expect: fit-on-some-ranks
model.fit(x, y)
if task_id == 0:
    print(model.evaluate(x, y))  # expect: fit-on-some-ranks
    model.save("model.keras")
