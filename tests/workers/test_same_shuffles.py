"""Datasets that shuffle without a seed: one order on all workers, or an error."""

from phalanx.testing import run_workers

SAMPLES = 60


def seen(dataset, epochs=2):
    """The ids that this worker's replica is given, by epoch."""
    import tensorflow as tf

    from phalanx.data.adapt import make_batch_source
    from phalanx.distributed.topology import topology_of

    source = make_batch_source(dataset, topology=topology_of(tf.distribute.get_strategy()), seed=1)
    found = []
    for _ in range(epochs):
        epoch = []
        for _, parts in source.open(0):
            for count, ids in parts:
                epoch += ids.numpy()[: int(count)].tolist()
        found.append(epoch)
    return found


def refusal(dataset):
    import phalanx
    from phalanx.errors import TrainingError

    model = linear()
    try:
        phalanx.fit(model, dataset.map(lambda i: (rows(i), rows(i))), verbose=0)
    except TrainingError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def linear():
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def rows(ids):
    import tensorflow as tf

    return tf.reshape(tf.cast(ids, tf.float32), [-1, 1])


def cases():
    import keras
    import tensorflow as tf

    from phalanx.distributed.topology import topology_of

    whole = tf.data.Dataset.range(SAMPLES)
    found = {}
    keras.utils.set_random_seed(3)
    found["shuffled"] = seen(whole.shuffle(SAMPLES).batch(7))
    chosen = whole.filter(lambda i: tf.random.uniform([]) < 0.5)
    found["chosen at random"] = seen(chosen.shuffle(SAMPLES).batch(7))
    found["the same"] = refusal(whole.shuffle(SAMPLES).batch(6))
    if topology_of(tf.distribute.get_strategy()).rank == 1:
        tf.random.uniform([])
    found["moved on"] = refusal(whole.shuffle(SAMPLES).batch(6))
    tf.random.set_seed(None)
    found["no seed"] = refusal(whole.shuffle(SAMPLES).batch(6))
    return found


def test_workers_shuffle_equally_or_say_so():
    first, second = run_workers(cases, 2, deadline=600)
    for epoch in range(2):
        together = first["shuffled"][epoch] + second["shuffled"][epoch]
        assert sorted(together) == list(range(SAMPLES))
        chosen = first["chosen at random"][epoch] + second["chosen at random"][epoch]
        assert 10 < len(chosen) == len(set(chosen)) < 50
    assert first["shuffled"][0] != first["shuffled"][1]
    for found in (first, second):
        assert found["the same"] == "none"
        assert found["moved on"].startswith("WorkerMismatchError: fit needs the same data")
        assert found["no seed"].startswith("DataError: Asked to share out a shuffled dataset")
