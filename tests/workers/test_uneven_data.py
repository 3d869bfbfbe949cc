"""Data whose length no one knows, or that differs: an end for all at one step, or an error."""

import os

import numpy as np
import pytest
from callback_cases import data, small_model

from phalanx.cluster.spec import WorkerSpec
from phalanx.testing import WorkerGroupFailedError, run_single, run_workers


def rank():
    return WorkerSpec.from_environment(os.environ).rank


def batches(count, failing_at=None):
    def generate():
        x, y = data(8 * 40)
        for i in range(count):
            if i == failing_at:
                raise LookupError("no such row")
            yield x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]

    return generate


def as_dataset(count):
    import tensorflow as tf

    specs = tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None, 1], tf.float32)
    return tf.data.Dataset.from_generator(batches(count), output_signature=specs)


def trained(dataset, **options):
    import phalanx

    model = small_model(steps_per_execution=options.pop("steps_per_execution", 1))
    history = phalanx.fit(model, dataset, verbose=0, **{"epochs": 2, **options})
    weights = [v.numpy() for v in model.weights]
    return history.history, weights, int(model.optimizer.iterations.numpy())


def known_length_cases(names=None):
    """By name, what a training on data of one unknown length gives."""
    cases = {
        "pass by pass": lambda: trained(as_dataset(5)),
        "longer than is made ahead": lambda: trained(as_dataset(37)),
        "three at a time": lambda: trained(as_dataset(5), steps_per_execution=3),
        "some steps": lambda: trained(as_dataset(9), steps_per_epoch=4),
        "a generator": lambda: trained(batches(7)(), steps_per_epoch=3),
        "validation": lambda: trained(as_dataset(3), validation_data=as_dataset(2)),
    }
    return {name: cases[name]() for name in names or cases}


@pytest.fixture(scope="module")
def expected():
    """What one device gives."""
    return run_single(known_length_cases, deadline=600)


@pytest.mark.parametrize(
    ("workers", "names"),
    [
        (2, ["pass by pass", "three at a time", "validation"]),
        pytest.param(2, None, marks=pytest.mark.full),
        pytest.param(3, ["three at a time", "validation"], marks=pytest.mark.full),
    ],
)
def test_data_of_unknown_length_ends_for_all(workers, names, expected, pool):
    for found in pool(workers).run(known_length_cases, args=(names,), deadline=600):
        assert list(found) == (names or list(expected))
        for name in found:
            history, weights, steps = expected[name]
            assert found[name][2] == steps, name
            assert found[name][0]["loss"] == pytest.approx(history["loss"], rel=1e-4), name
            for got, want in zip(found[name][1], weights, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6, err_msg=name)
    assert expected["pass by pass"][2] == 10


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((3, 5), marks=pytest.mark.full),
        (5, 3),
        pytest.param((20, 40), marks=pytest.mark.full),
    ],
)
def test_generators_of_different_lengths_are_named(lengths, pool):
    def function(lengths):
        from phalanx.errors import DataError

        with pytest.raises(DataError) as caught:
            trained(as_dataset(lengths[rank()]))
        return str(caught.value)

    short, long = min(lengths), max(lengths)
    at_least = "at least " if long > short + 16 else ""
    for output in pool(2).run(function, args=(lengths,), deadline=600):
        assert f"worker {lengths.index(short)}: {short}" in output
        assert f"worker {lengths.index(long)}: {at_least}" in output


def test_all_stop_with_the_shortest_where_the_user_asks_for_it(expected, pool):
    def function():
        length = (5, 3)[rank()]
        unknown = trained(as_dataset(length), uneven_data="stop")
        known = trained(as_dataset(length).apply(cardinality(length)), uneven_data="stop")
        return unknown, known

    def cardinality(length):
        import tensorflow as tf

        return tf.data.experimental.assert_cardinality(length)

    for unknown, known in pool(2).run(function, deadline=600):
        for history, weights, steps in (unknown, known):
            assert steps == 6
            assert history["loss"] == pytest.approx(expected["validation"][0]["loss"], rel=1e-4)
            for got, want in zip(weights, expected["validation"][1], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_a_generator_that_fails_on_one_worker_is_named():
    def function():
        import tensorflow as tf

        specs = tf.TensorSpec([None, 4], tf.float32), tf.TensorSpec([None, 1], tf.float32)
        generate = batches(9, failing_at=4 if rank() == 1 else None)
        trained(tf.data.Dataset.from_generator(generate, output_signature=specs))

    with pytest.raises(WorkerGroupFailedError) as caught:
        run_workers(function, deadline=600)
    assert caught.value.rank == 1
    assert "no such row" in caught.value.first.message


def own_part(known):
    """This worker's own 8 or 16 rows, distributed, of a length that TensorFlow knows or not."""
    import tensorflow as tf

    x, y = data(24)
    mine = slice(0, 8) if rank() == 0 else slice(8, 24)

    def dataset(context):
        whole = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).batch(4)
        return whole if known else whole.filter(lambda *_: True)

    return tf.distribute.get_strategy().distribute_datasets_from_function(dataset)


@pytest.mark.full
def test_distributed_datasets_of_different_lengths_hang_no_one(pool):
    def function():
        from phalanx.errors import DataError

        shortest = [
            trained(own_part(known=known), epochs=1, uneven_data="stop") for known in (True, False)
        ]
        with pytest.raises(DataError) as caught:
            trained(own_part(known=False), epochs=1)
        return shortest, str(caught.value)

    results = pool(2).run(function, deadline=600)
    for shortest, output in results:
        assert [steps for *_, steps in shortest] == [2, 2]
        assert "worker 0: 2, worker 1: at least 4" in output or "worker 1: 4" in output
    np.testing.assert_equal(*results)


def test_distributed_datasets_of_different_lengths_are_named(pool):
    def function():
        from phalanx.errors import PhalanxError

        with pytest.raises(PhalanxError) as caught:
            trained(own_part(known=True))
        return str(caught.value)

    for output in pool(2).run(function, deadline=600):
        assert "number of batches" in output
        assert "worker 0: 2, worker 1: 4" in output


def test_what_is_no_way_to_treat_uneven_data_is_refused():
    from phalanx.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="must be 'error' or 'stop'; found 'pad'"):
        trained(data(8), uneven_data="pad")
