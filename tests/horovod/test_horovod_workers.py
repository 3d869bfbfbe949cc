"""Training over Horovod in real processes; the equivalence suite holds the numbers."""

import pathlib
import sys

import numpy as np
import pytest

pytest.importorskip("horovod")
sys.path.append(str(pathlib.Path(__file__).parents[1] / "workers"))
import resume_cases

from phalanx.testing import run_workers

pytestmark = pytest.mark.horovod


def what_replicas_exchange():
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    sums = {}

    @tf.function
    def exchange():
        def replica():
            context = tf.distribute.get_replica_context()
            rank = context.replica_id_in_sync_group
            for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int16, tf.int64):
                sums[dtype.name] = context.all_reduce("SUM", tf.cast(rank + 1, dtype))
            slices = tf.IndexedSlices(
                tf.fill([1, 2], tf.cast(rank + 1, tf.float32)),
                tf.constant([3]),
                tf.constant([5, 2]),
            )
            return {
                **sums,
                "mean": context.all_reduce("MEAN", tf.cast(rank, tf.float32)),
                "rows": context.all_gather(tf.fill([rank + 1], rank), axis=0),
                "columns": context.all_gather(tf.fill([1, rank + 1], rank), axis=1),
                "slices": context.all_reduce("SUM", slices).values,
                "merged": context.merge_call(
                    lambda s, v: s.reduce("SUM", v, axis=None), args=(rank,)
                ),
            }

        return strategy.run(replica)

    found = {
        name: tf.cast(value, tf.float64).numpy().tolist() for name, value in exchange().items()
    }
    found["outside"] = float(strategy.reduce("SUM", 1.5, axis=None))
    found["gathered"] = strategy.gather(tf.constant([7]), axis=0).numpy().tolist()
    return found


def test_what_replicas_exchange():
    ours, theirs = run_workers(what_replicas_exchange, 2, strategy="horovod", deadline=600)
    assert ours == theirs
    for dtype in ("float32", "float64", "float16", "bfloat16", "int16", "int64"):
        assert ours[dtype] == 3.0
    assert ours["mean"] == 0.5
    assert ours["rows"] == [0, 1, 1]
    assert ours["columns"] == [[0, 1, 1]]
    assert ours["slices"] == [[1, 1], [2, 2]]
    assert (ours["merged"], ours["outside"], ours["gathered"]) == (1, 3.0, [7, 7])


def weights_read_by_the_chief_alone():
    import keras
    import numpy as np

    import phalanx

    rank = phalanx.rank()
    keras.utils.set_random_seed(1 + rank)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.1), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    x = np.ones((8, 3), "float32")
    if rank == 0:
        model.set_weights([np.full(w.shape, 4.0) for w in model.get_weights()])
    before = [w.tolist() for w in model.get_weights()]
    optimizer = keras.optimizers.SGD(0.0)
    model.compile(optimizer, "mse")
    phalanx.fit(model, x, np.zeros((8, 2)), epochs=1, batch_size=4, verbose=0)
    return before, [w.tolist() for w in model.get_weights()]


@pytest.mark.full
def test_training_begins_from_the_chiefs_state():
    (mine, after), (other, after_other) = run_workers(
        weights_read_by_the_chief_alone, 2, strategy="horovod", deadline=600
    )
    assert mine != other
    assert after == after_other == mine


def by_hand(seed):
    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx

    strategy = tf.distribute.get_strategy()
    keras.utils.set_random_seed(seed)
    x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.05)
        optimizer.build(model.trainable_variables)
    phalanx.distribute_optimizer(optimizer)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = keras.ops.mean((model(x) - y) ** 2, axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=8)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    )
    losses = [float(step(batch)) for batch in data]
    return losses, np.concatenate([w.ravel() for w in model.get_weights()]).tolist()


@pytest.mark.full
def test_a_loop_written_by_hand():
    ours, theirs = run_workers(by_hand, 2, args=(5,), strategy="horovod", deadline=600)
    (alone,) = run_workers(by_hand, 1, args=(5,), strategy="single", deadline=600)
    assert ours == theirs
    assert ours[0] == pytest.approx(alone[0], rel=1e-5)
    assert ours[1] == pytest.approx(alone[1], rel=1e-5)


def a_distributed_dataset():
    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx

    strategy = tf.distribute.get_strategy()
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(6)
    if strategy.num_replicas_in_sync > 1:
        data = strategy.experimental_distribute_dataset(data)
    history = phalanx.fit(model, data, epochs=2, verbose=0).history
    return history["loss"], np.concatenate([w.ravel() for w in model.get_weights()]).tolist()


@pytest.mark.full
def test_fit_on_a_dataset_that_the_user_distributed():
    ours, theirs = run_workers(a_distributed_dataset, 2, strategy="horovod", deadline=600)
    (alone,) = run_workers(a_distributed_dataset, 1, strategy="single", deadline=600)
    assert ours == theirs
    assert ours[0] == pytest.approx(alone[0], rel=1e-5)
    assert ours[1] == pytest.approx(alone[1], rel=1e-5)


def both(directory, name):
    """A training that no one disturbed, and one that was broken off and restarted."""
    whole = resume_cases.run(name, f"{directory}/whole", every=2)
    assert resume_cases.run(name, f"{directory}/broken", every=2, break_at=7) is None
    return whole, resume_cases.run(name, f"{directory}/broken", every=2)


@pytest.mark.full
def test_a_training_that_was_broken_off_continues_exactly(tmp_path):
    arguments = (str(tmp_path), "callbacks_and_averages")
    for whole, again in run_workers(both, 2, strategy="horovod", args=arguments, deadline=600):
        for one, other in zip(whole["weights"], again["weights"], strict=True):
            np.testing.assert_array_equal(one, other)
        assert again["history"] == whole["history"]
