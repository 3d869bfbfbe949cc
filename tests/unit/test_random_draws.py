"""N replicas together draw the random numbers that one device draws for the global batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.distributed.topology import rows_of
from phalanx.keras_compat.draw_counters import DrawCounters
from phalanx.keras_compat.patches import Patches
from phalanx.keras_compat.random_draws import ReplicaRows, draws_by_rows

TOTAL = 7
SEED = (5, 11)

STATELESS = {
    "uniform": tf.random.stateless_uniform,
    "normal": tf.random.stateless_normal,
    "truncated": tf.random.stateless_truncated_normal,
}
KERAS = {
    "uniform": lambda shape: keras.random.uniform(shape, seed=3),
    "normal": lambda shape: keras.random.normal(shape, seed=3),
    "truncated": lambda shape: keras.random.truncated_normal(shape, seed=3),
    "integers": lambda shape: keras.random.randint(shape, 0, 1000, seed=3),
    "dropout": lambda shape: keras.random.dropout(tf.ones(shape), 0.5, seed=3),
    "channels": lambda shape: keras.random.dropout(
        tf.ones(shape), 0.5, noise_shape=(shape[0], *[1] * (len(shape) - 2), shape[-1]), seed=3
    ),
}
STATEFUL = {
    "uniform": lambda shape: tf.random.uniform(shape, seed=1),
    "normal": lambda shape: tf.random.normal(shape, seed=1),
    "truncated": lambda shape: tf.random.truncated_normal(shape, seed=1),
    "integers": lambda shape: tf.random.uniform(shape, maxval=1000, dtype=tf.int32, seed=1),
    "gamma": lambda shape: tf.random.gamma(shape, 2.0, seed=1),
    "dropout": lambda shape: tf.nn.dropout(tf.ones(shape), 0.5, seed=1),
}
INNER = [(), (4,), (3,), (3, 5)]


def rows(replica, replicas, total=TOTAL, *, static=True):
    start, count = rows_of(replica, replicas, total)
    return ReplicaRows(
        start=start,
        own_rows=max(count, 1),
        total=total,
        static_count=count if static else None,
        replica=replica,
    )


def drawn_by(held, draw, times=1, inner=(), *, traced=False):
    """What a replica with the rows `held` draws, in a graph in which their number is not known."""
    leading = held.own_rows * times if held else TOTAL * times

    def on_rows(leading):
        return draw((leading, *inner))

    with Patches(lambda: draws_by_rows(lambda: held)):
        if not traced:
            return on_rows(leading).numpy()
        return tf.function(on_rows, autograph=False)(tf.constant(leading)).numpy()


def as_one_device(draw, inner, *, times=1, traced=True, before=lambda: None):
    before()
    return drawn_by(None, draw, times, inner, traced=traced)


def by_replicas(draw, inner, replicas, *, times=1, traced=True, before=lambda: None):
    for replica in range(replicas):
        before()
        yield drawn_by(
            rows(replica, replicas, static=not traced), draw, times, inner, traced=traced
        )


def assert_as_one_device(draw, inner, **how):
    how = {"traced": False, **how}
    expected = as_one_device(draw, inner, **how)
    for replicas in (2, 3):
        found = np.concatenate(list(by_replicas(draw, inner, replicas, **how)))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("kind", STATELESS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_draws_from_a_seed_are_those_of_the_rows(kind, inner, dtype, traced):
    def draw(shape):
        return tf.cast(STATELESS[kind](shape, SEED, dtype=dtype), tf.float64)

    assert_as_one_device(draw, inner, traced=traced)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("most", [1000, None])
def test_integers_from_a_seed_are_those_of_the_rows(inner, dtype, most):
    least = None if most is None else 0

    def draw(shape):
        return tf.random.stateless_uniform(shape, SEED, minval=least, maxval=most, dtype=dtype)

    assert_as_one_device(draw, inner)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", KERAS)
def test_what_keras_draws_is_that_of_the_rows(kind, traced):
    assert_as_one_device(KERAS[kind], (3, 5), traced=traced)


@pytest.mark.parametrize("traced", [False, True])
def test_several_entries_a_row_are_those_of_the_rows(traced):
    assert_as_one_device(KERAS["normal"], (3,), times=2, traced=traced)


@pytest.mark.parametrize("kind", [KERAS["normal"], KERAS["dropout"], STATEFUL["normal"]])
@pytest.mark.parametrize("inner", [(4,), (3,)])
def test_batches_put_together_get_the_rows_of_each(kind, inner):
    def draw(shape):
        batch = tf.ones(shape)
        both = tf.nn.relu(tf.concat([batch, 2 * batch], 0))
        return kind((tf.shape(both)[0], *inner))

    before = {"before": lambda: tf.random.set_seed(2)}
    expected = np.split(as_one_device(draw, inner, **before), 2)
    for replicas in (2, 3):
        parts = [np.split(each, 2) for each in by_replicas(draw, inner, replicas, **before)]
        for batch in (0, 1):
            found = np.concatenate([part[batch] for part in parts])
            np.testing.assert_array_equal(found, expected[batch])


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("kind", STATEFUL)
def test_draws_of_operations_with_a_state_are_those_of_the_rows(kind, inner):
    def draw(shape):
        return tf.stack([STATEFUL[kind](shape), STATEFUL[kind](shape)], axis=1)

    assert_as_one_device(draw, inner, before=lambda: tf.random.set_seed(2))


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_generator_is_advanced_equally_on_all_replicas(replicas):
    def draw(shape):
        binomial = generator.binomial(shape, 9.0, 0.5, dtype=tf.float32)
        return tf.stack([generator.normal(shape), binomial, generator.uniform(shape)], axis=1)

    generator = tf.random.Generator.from_seed(4)
    expected, after = drawn_by(None, draw, 1, (3,)), generator.state.numpy()
    parts = []
    for replica in range(replicas):
        generator = tf.random.Generator.from_seed(4)
        parts.append(drawn_by(rows(replica, replicas), draw, 1, (3,)))
        np.testing.assert_array_equal(generator.state.numpy(), after)
    np.testing.assert_array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("shape", [(), (10,), (10, 4)])
@pytest.mark.parametrize("kind", [STATELESS["normal"], KERAS["normal"], STATEFUL["normal"]])
def test_what_has_no_row_a_sample_is_the_same_on_every_replica(kind, shape):
    def draw(held):
        tf.random.set_seed(1)
        with Patches(lambda: draws_by_rows(lambda: held)):
            return kind(shape, SEED) if kind is STATELESS["normal"] else kind(shape)

    for held in (rows(0, 2), rows(1, 2), rows(1, 2, static=False)):
        np.testing.assert_array_equal(draw(held), draw(None))


PARAMETERIZED = {
    "gamma": lambda n: keras.random.gamma((n, 9), 2.0, seed=1),
    "beta": lambda n: keras.random.beta((n, 9), 2.0, 0.4, seed=1),
    "binomial": lambda n: keras.random.binomial((n, 9), 50.0, 0.5, seed=1),
    "poisson": lambda n: tf.random.stateless_poisson((n, 9), SEED, 9.0),
    "bounded": lambda n: tf.random.stateless_parameterized_truncated_normal((n, 9), SEED),
    "gamma of columns": lambda n: tf.random.stateless_gamma((n, 3), SEED, [0.3, 2.0, 5.0]),
    "Poisson of columns": lambda n: tf.random.stateless_poisson((n, 3), SEED, [0.3, 2.0, 5.0]),
    "stateful Poisson": lambda n: tf.random.poisson((n, 9), 4.0, seed=1),
    "stateful Poisson of columns": lambda n: tf.random.poisson((n,), [4.0, 9.0], seed=1),
    "stateful gamma of columns": lambda n: tf.random.gamma((n,), [4.0, 9.0], seed=1),
}
OF_ROWS = {
    "categorical": lambda a: tf.random.stateless_categorical(a, 20, SEED),
    "gamma": lambda a: tf.random.stateless_gamma(tf.shape(a), SEED, a, beta=a),
    "binomial": lambda a: tf.random.stateless_binomial(tf.shape(a), SEED, 9.0, a / 8),
    "Poisson": lambda a: tf.random.stateless_poisson(tf.shape(a), SEED, a),
    "stateful categorical": lambda a: tf.random.categorical(a, 20, seed=1),
    "stateful gamma": lambda a: tf.random.gamma((), a, seed=1),
    "stateful Poisson": lambda a: tf.random.poisson((), a, seed=1),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("kind", PARAMETERIZED)
def test_draws_of_other_distributions_are_those_of_the_rows(kind, traced):
    def draw(shape):
        return PARAMETERIZED[kind](shape[0])

    before = {"before": lambda: tf.random.set_seed(2)}
    assert_as_one_device(draw, (), traced=traced, **before)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("replicas", [2, 3, 9])
@pytest.mark.parametrize("kind", OF_ROWS)
def test_rows_may_have_parameters_of_their_own(kind, replicas, traced):
    values = (np.arange(TOTAL * 4).reshape(TOTAL, 4) % 7 + 1).astype("float32")

    def drawn(held, own):
        tf.random.set_seed(2)
        with Patches(lambda: draws_by_rows(lambda: held)):
            if not traced:
                return OF_ROWS[kind](tf.constant(own)).numpy()
            signature = [tf.TensorSpec([None, 4])]
            return tf.function(lambda a: OF_ROWS[kind](a), signature, autograph=False)(own).numpy()

    expected, parts = drawn(None, values), []
    for replica in range(replicas):
        held = rows(replica, replicas, static=not traced)
        own = values[held.start : held.start + held.own_rows]
        count = rows_of(replica, replicas, TOTAL)[1]
        parts.append(drawn(held, own if len(own) else values[:1])[:count])
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_a_replica_without_rows_draws_for_the_row_that_is_a_stand_in():
    held = rows(2, 3, 2)
    assert (held.start, held.own_rows) == (2, 1)
    assert drawn_by(held, KERAS["normal"], 1, (3,), traced=True).shape == (1, 3)
    assert drawn_by(held, STATEFUL["normal"], 1, (3,), traced=True).shape == (1, 3)


@pytest.mark.parametrize("kind", ["uniform", "normal", "truncated", "integers", "dropout"])
@pytest.mark.parametrize("together", [False, True])
def test_labelled_rows_beside_more_unlabelled_ones_get_their_own(kind, together):
    """Zipped batches of 12 and 4 rows: each replica has a half of both."""

    def drawn(held, count, fewer):
        def draws(unlabelled, labelled):
            batches = [unlabelled, labelled]
            batches = [tf.concat(batches, 0)] if together else batches
            return [KERAS[kind](tf.shape(batch)) for batch in batches]

        signature = [tf.TensorSpec([None, 3])] * 2
        with Patches(lambda: draws_by_rows(lambda: held)):
            parts = tf.function(draws, signature, autograph=False)(
                tf.zeros((count, 3)), tf.zeros((fewer, 3))
            )
        whole = tf.concat(parts, 0).numpy()
        return whole[:count], whole[count:]

    expected = drawn(None, 12, 4)
    found = [
        drawn(
            ReplicaRows(
                start=6 * i, own_rows=6, total=12, static_count=None, replica=i, fewer=(2,)
            ),
            6,
            2,
        )
        for i in range(2)
    ]
    for one_device, of_replicas in zip(expected, zip(*found, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(of_replicas), one_device)


def stateful_draws():
    branch = tf.cond(tf.constant(True), lambda: tf.random.normal((3,)), lambda: tf.zeros((3,)))
    return (
        tf.random.normal((5, 3)),
        tf.random.uniform(()),
        tf.random.truncated_normal((4, 3)),
        tf.random.uniform((7,), maxval=1000, dtype=tf.int32),
        tf.random.normal((3,), dtype=tf.float64, seed=5),
        tf.random.shuffle(tf.range(9)),
        tf.random.gamma((4,), [0.5, 3.0]),
        branch,
    )


def test_functions_that_share_counters_draw_what_one_function_draws():
    tf.random.set_seed(7)
    plain = tf.function(stateful_draws)
    expected = [plain() for _ in range(4)]
    counters = DrawCounters()

    def counted():
        with Patches(lambda: draws_by_rows(lambda: None, counters.of_trace(0))):
            return stateful_draws()

    first, second = tf.function(counted), tf.function(counted)
    found = [function() for function in (first, second, second, first)]
    for one, other in zip(expected, found, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_without_a_seed_a_draw_keeps_a_counter_of_its_own():
    tf.random.set_seed(None)
    requested = []

    @tf.function
    def draw():
        with Patches(lambda: draws_by_rows(lambda: None, requested.append)):
            return tf.random.normal((2,))

    draw()
    assert requested == []


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_shuffle_has_the_order_of_the_global_batch(replicas):
    """Each replica sorts the keys of its rows; those of all replicas give the order."""
    values = np.arange(TOTAL * 2).reshape(TOTAL, 2)
    tf.random.set_seed(3)
    plain = tf.function(lambda: tf.random.shuffle(values, seed=4))
    expected = [plain().numpy() for _ in range(3)]

    def keys_of(held, count):
        tf.random.set_seed(3)
        counters = DrawCounters()

        def traced(own):
            with Patches(lambda: draws_by_rows(lambda: held, counters.of_trace(0))):
                shuffled = tf.random.shuffle(own, seed=4)
            order = shuffled.op.inputs[1]
            while order.op.type != "StridedSlice" or order.shape.rank != 1:
                order = order.op.inputs[0]
            return order

        function = tf.function(traced, [tf.TensorSpec([None, 2], tf.int64)], autograph=False)
        return [function(values[held.start :][:count]).numpy() for _ in range(3)]

    counts = [rows_of(i, replicas, TOTAL)[1] for i in range(replicas)]
    of_each = [keys_of(rows(i, replicas, static=False), count) for i, count in enumerate(counts)]
    drawn = zip(*of_each, strict=True)
    for keys, wanted in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(values[np.argsort(np.concatenate(keys))], wanted)
