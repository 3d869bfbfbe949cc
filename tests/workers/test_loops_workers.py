"""Loops written by hand: unchanged, and with the one line that shares their batches out."""

import functools

import numpy as np
import pytest

from phalanx.testing import run_single

WAYS = [
    (graph, kind, shared)
    for graph in (False, True)
    for kind in ("mean", "sum", "scaled", "dropout", *(["compiled", "nested"] if graph else []))
    for shared in (False, True)
]
NOW = [
    (True, "mean", False), (True, "dropout", True), (False, "sum", True), (True, "scaled", True),
    (True, "nested", True),
]  # fmt: skip
"""The ways that `make test` trains."""


def data(rows):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 4)).astype("float32")
    return x, x.sum(1, keepdims=True)


def loop(graph, kind, shared):
    """Two passes over 37 rows by 6: the last loss, metric, predictions and weights."""
    import keras
    import tensorflow as tf

    import phalanx

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(1)])
    if kind == "dropout":
        model = keras.Sequential([layers.Dense(8), layers.Dropout(0.3, seed=2), layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.1)
    if kind == "scaled":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    loss_of, error = keras.losses.MeanSquaredError(), keras.metrics.MeanAbsoluteError()

    def step(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = loss_of(y, predicted)
            if kind == "sum":
                loss = tf.reduce_sum((y - predicted) ** 2) / 6
                loss = loss if graph else phalanx.sum_loss(loss)
            target = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(target, model.trainable_weights), model.trainable_weights)
        error.update_state(y, predicted)
        root = tf.sqrt(error.result())
        return {"loss": loss, "predicted": predicted, "error": error.result(), "root": root}

    step = tf.function(step, jit_compile=kind == "compiled" or None) if graph else step
    step = phalanx.distribute_step(step) if shared else step
    if kind == "nested":  # a function of batches of any length calls the step
        specs = [tf.TensorSpec([None, columns]) for columns in (4, 1)]
        step = tf.function(functools.partial(step), input_signature=specs)
    for _ in range(2):
        for batch in tf.data.Dataset.from_tensor_slices(data(37)).batch(6):
            found = step(*batch)
    reported = [*(float(found[name]) for name in ("loss", "error", "root")), float(error.result())]
    return [*reported, found["predicted"].numpy(), *(weight.numpy() for weight in model.weights)]


def loops(ways):
    import phalanx

    phalanx.enable()
    try:
        return [loop(*way) for way in ways]
    finally:
        phalanx.disable()


@pytest.mark.parametrize(
    ("workers", "ways"),
    [
        pytest.param(2, NOW, id="2"),
        pytest.param(
            2, [way for way in WAYS if way not in NOW], id="2-others", marks=pytest.mark.full
        ),
        pytest.param(3, WAYS, id="3", marks=pytest.mark.full),
    ],
)
def test_a_loop_comes_out_as_on_one_device(workers, ways, pool):
    one_device = run_single(loops, args=(ways,), deadline=300)
    for of_worker in pool(workers).run(loops, args=(ways,), deadline=600):
        for name, found, expected in zip(ways, of_worker, one_device, strict=True):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=str(name))


def counting_loop(kind):
    """What a step returns of integers, of a metric that it resets or updates in a branch."""
    import keras
    import tensorflow as tf

    import phalanx

    phalanx.enable()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer, error = keras.optimizers.SGD(0.05), keras.metrics.MeanAbsoluteError()

    @phalanx.distribute_step
    @tf.function
    def step(x, y, number):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.reduce_mean((y - predicted) ** 2)
        gradients = tape.gradient(loss, model.trainable_weights)
        if kind == "clips":
            gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        optimizer.apply(gradients, model.trainable_weights)
        if kind == "resets" or (kind == "resets in a branch" and number % 3 == 0):
            error.reset_state()
        if kind == "branches":
            if number % 2 == 0:
                error.update_state(y, predicted)
        else:
            error.update_state(y, predicted)
        near = tf.abs(y - predicted) < 1
        counted = {"near": tf.reduce_sum(tf.cast(near, tf.int32)), "step": optimizer.iterations}
        return {**counted, "far": tf.math.count_nonzero(~near), "error": error.result()}

    found = []
    for number, batch in enumerate(tf.data.Dataset.from_tensor_slices(data(37)).batch(6)):
        returned = step(*batch, tf.constant(number))
        found.append([returned[name].numpy() for name in ("near", "step", "far", "error")])
    phalanx.disable()
    return [*map(np.array, found), *(weight.numpy() for weight in model.weights)]


def assert_as_on_one_device(function, kind, pool):
    expected = run_single(function, args=(kind,), deadline=300)
    for found in pool(2).run(function, args=(kind,), deadline=300):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["clips", "resets", "resets in a branch", "branches"])
def test_a_step_that_clips_counts_and_resets(kind, pool):
    assert_as_on_one_device(counting_loop, kind, pool)


def contrast_loop(rows):
    """The losses and weights of a step that has `rows` of the batch as what `rows` names."""
    import keras
    import tensorflow as tf

    import phalanx

    phalanx.enable()
    keras.utils.set_random_seed(1)
    encoder = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.05)

    @phalanx.distribute_step
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            one, other = (tf.math.l2_normalize(encoder(x * scale), axis=1) for scale in (1.0, 1.3))
            similar = tf.matmul(one, other, transpose_b=True)
            number = {"constant": 6, "dynamic": tf.shape(x)[0], "python": x.shape[0]}[rows]
            labels = tf.range(number)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, similar)
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, encoder.trainable_weights), encoder.trainable_weights)
        return loss

    batches = tf.data.Dataset.from_tensor_slices(data(24)[0]).batch(6, drop_remainder=True)
    losses = [float(step(batch)) for batch in batches]
    phalanx.disable()
    return [np.array(losses), *(weight.numpy() for weight in encoder.weights)]


@pytest.mark.parametrize("rows", ["constant", "dynamic"])
def test_a_step_that_combines_rows_of_batches_of_one_size(rows, pool):
    assert_as_on_one_device(contrast_loop, rows, pool)


def test_a_step_that_combines_rows_and_needs_their_number_in_python_says_so(pool):
    def function():
        import logging

        said = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())
        logging.getLogger("phalanx").addHandler(handler)
        contrast_loop("python")
        logging.getLogger("phalanx").removeHandler(handler)
        return said

    assert all("tf.shape(x)[0]" in " ".join(said) for said in pool(2).run(function, deadline=300))


def test_a_reset_and_an_update_in_one_branch_are_refused(pool):
    def function():
        import keras
        import tensorflow as tf

        import phalanx

        phalanx.enable()
        mean = keras.metrics.Mean()

        @phalanx.distribute_step
        @tf.function
        def step(x):
            if tf.reduce_max(x) > 1:
                mean.reset_state()
                mean.update_state(x)

        try:
            step(tf.ones([4, 1]))
        except phalanx.errors.ConfigurationError as error:
            return str(error)
        finally:
            phalanx.disable()

    assert all("reset" in found for found in pool(2).run(function, deadline=300))


def own_batches(rows, unknown_length):
    """Weights after two passes over the worker's own batches of `rows`, at most 36 rows in all."""
    import keras
    import tensorflow as tf

    import phalanx

    phalanx.enable()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer, loss_of = keras.optimizers.Adam(0.05), keras.losses.MeanSquaredError()
    dataset = tf.data.Dataset.from_tensor_slices(data(36 if rows == 6 else 39)).batch(rows)
    if unknown_length:
        dataset = dataset.filter(lambda *_: True)
    batches = phalanx.data.shard(dataset)
    count = 0
    for _ in range(2):
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_weights)
            optimizer.apply(gradients, model.trainable_weights)
            count += 1
    phalanx.disable()
    return count, [weight.numpy() for weight in model.weights]


@pytest.mark.parametrize("unknown_length", [False, True])
def test_a_loop_over_batches_of_each_workers_own(unknown_length, pool):
    steps, expected = run_single(own_batches, args=(6, unknown_length), deadline=300)
    for count, weights in pool(2).run(own_batches, args=(3, unknown_length), deadline=300):
        assert count == steps == 12
        for found, one_device in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, one_device, rtol=1e-5, atol=1e-6)


def test_what_scripts_ask_of_each_other(pool):
    def function():
        import tensorflow as tf

        import phalanx

        rank = phalanx.rank()
        in_graph = tf.function(lambda: phalanx.all_reduce(tf.constant(float(rank + 1))))
        phalanx.barrier()
        return {
            "rank": (rank, phalanx.world_size(), phalanx.is_chief()),
            "sum": float(phalanx.all_reduce(rank + 1)),
            "mean": phalanx.all_reduce({"a": np.array([rank, 1.0])}, op="mean")["a"].tolist(),
            "graph": float(in_graph()),
            "gathered": [part.tolist() for part in phalanx.all_gather(np.array([rank]))],
            "nothing": [part.shape for part in phalanx.all_gather(np.zeros((0, 3)))],
            "objects": phalanx.all_gather({"name": "x" * rank}),
            "broadcast": phalanx.broadcast(np.array([rank + 5, 7])).tolist(),
            "from 1": phalanx.broadcast(("y", rank), root=1),
        }

    for rank, found in enumerate(pool(2).run(function, deadline=300)):
        assert found == {
            "rank": (rank, 2, rank == 0),
            "sum": 3.0,
            "mean": [0.5, 1.0],
            "graph": 3.0,
            "gathered": [[0], [1]],
            "nothing": [(0, 3), (0, 3)],
            "objects": [{"name": ""}, {"name": "x"}],
            "broadcast": [5, 7],
            "from 1": ("y", 1),
        }
