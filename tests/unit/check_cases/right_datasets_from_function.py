"""Right: data made for each input pipeline, in a loop of one's own."""

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
GLOBAL_BATCH = 64 * strategy.num_replicas_in_sync


def dataset_fn(context):
    batch = context.get_per_replica_batch_size(GLOBAL_BATCH)
    data = tf.data.Dataset.range(1000).shuffle(1000, seed=1)
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.shuffle(1000).batch(batch)


data = strategy.distribute_datasets_from_function(dataset_fn)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def step(iterator):
    def one(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    strategy.run(one, args=(next(iterator),))


iterator = iter(data)
for number in range(10):
    step(iterator)
if strategy.cluster_resolver.task_id == 0:
    with open("done.txt", "w") as file:
        file.write("done")
