"""Gradients in several pieces and in 16 bits, between real workers."""

import sys
from pathlib import Path

import numpy as np
import pytest

from phalanx.cluster.reduce_options import ReduceOptions
from phalanx.monitoring.event_log import read_records, records_path

sys.path.insert(0, str(Path(__file__).parents[1] / "equivalence"))
from test_equivalence import assert_all_same, on_one_device, on_this_worker

MANY = ReduceOptions(bucket_mb=1e-4)
"""Some 25 float32 entries a bucket: most tensors have one of their own."""

EVERY_TIME = {"adam"}
IN_BUCKETS = (
    "adam", "remainder_1", "embedding_clipped", "sgd", "accumulation_clipped",
    "loss_scale_clipped", "only_1_samples", "batchnorm_synchronized_few", "embedding_adam",
    "steps_per_execution_3", "own_train_step", "mixed_bfloat16", "ema", "lazy_subclass",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in EVERY_TIME else pytest.mark.full) for n in IN_BUCKETS],
)
def test_cases_of_one_device_in_several_buckets(name, pool):
    outcomes = pool(2, reduction=MANY).run(on_this_worker, args=(name,), deadline=600)
    assert_all_same(name, outcomes)


@pytest.mark.full
@pytest.mark.parametrize("name", ["adam", "remainder_1", "only_2_samples"])
def test_three_workers_in_several_buckets(name, pool):
    outcomes = pool(3, reduction=MANY).run(on_this_worker, args=(name,), deadline=600)
    assert_all_same(name, outcomes)


def summed(dtype, bad, replicas):
    """What workers add up to, in three tensors and a flag, and what the check finds."""
    import tensorflow as tf

    from phalanx.gradients.all_reduce import Reduction
    from phalanx.gradients.checked_all_reduce import (
        all_reduce_and_check,
        all_reduce_with_loss_flag,
    )

    strategy = tf.distribute.get_strategy()
    reduction = Reduction(collectives=strategy.collectives, options=strategy.reduce_options)
    rank = strategy.collectives.rank
    entry = bad if rank == 1 else 1.0
    names = ["a", "b", "c"]

    @tf.function
    def step(x):
        made = [tf.cast((rank + 1) * x * k, dtype) for k in (1.0, 2.0, 3.0)]
        made[1] *= tf.cast(tf.stack([entry, *[1.0] * 39]), dtype)
        checked = all_reduce_and_check(made, names, replicas=replicas, reduction=reduction)
        flagged = all_reduce_with_loss_flag(
            made, names, tf.constant(entry), replicas=replicas, reduction=reduction
        )
        return checked.total, checked.finite, checked.own(), flagged.finite

    x = tf.linspace(0.5, 3.0, 40)
    total, finite, own, flag = strategy.run(step, args=(x,))
    return [t.numpy() for t in total], bool(finite), [bool(o) for o in own], bool(flag)


@pytest.mark.parametrize(
    ("workers", "reduce_dtype"),
    [(2, "bfloat16"), pytest.param(2, "float16", marks=pytest.mark.full), (2, None),
     *(pytest.param(3, d, marks=pytest.mark.full) for d in ("bfloat16", "float16", None))],
)  # fmt: skip
def test_sums_are_the_same_bits_and_what_is_not_finite_is_found(workers, reduce_dtype, pool):
    group = pool(workers, reduction=ReduceOptions(bucket_mb=1e-4, reduce_dtype=reduce_dtype))
    fine = group.run(summed, args=("float32", 1.0, workers), deadline=120)
    factor = sum(range(1, workers + 1))
    for total, finite, own, flag in fine:
        assert (finite, own, flag) == (True, [False, False], True)
        for k, (one, of_chief) in enumerate(zip(total, fine[0][0], strict=True), start=1):
            assert one.dtype == np.float32
            assert np.array_equal(one, of_chief)
            np.testing.assert_allclose(
                one,
                factor * k * np.linspace(0.5, 3.0, 40, dtype="float32"),
                rtol={None: 1e-6, "bfloat16": 2**-7, "float16": 2**-9}[reduce_dtype],
            )
    for bad in (np.nan, np.inf):
        found = group.run(summed, args=("float32", bad, workers), deadline=120)
        for rank, (_, finite, own, flag) in enumerate(found):
            assert (finite, own, flag) == (False, [rank == 1, rank == 1], False)


@pytest.mark.full
@pytest.mark.parametrize("reduce_dtype", ["bfloat16", "float16"])
def test_16_bits_end_near_one_device(reduce_dtype, pool):
    group = pool(2, reduction=ReduceOptions(bucket_mb=1e-4, reduce_dtype=reduce_dtype))
    for name in ("sgd", "embedding_sgd"):
        outcomes = group.run(on_this_worker, args=(name,), deadline=600)
        for outcome in outcomes:
            for ours, chiefs, expected in zip(
                outcome.weights, outcomes[0].weights, on_one_device(name).weights, strict=True
            ):
                assert np.array_equal(ours, chiefs)
                assert np.abs(ours - expected).max() <= 1e-2 * np.abs(expected).max()


TABLE = 40_000


def trained_embedding(uses, run_dir):
    """Weights after two steps on a table that is too large to travel dense; the plan."""
    import json
    import os

    import keras

    import phalanx
    from phalanx.cluster.spec import WORKER_VARIABLE

    if run_dir is not None:  # as under a launcher, which keeps events
        spec = {**json.loads(os.environ[WORKER_VARIABLE]), "run_dir": run_dir}
        os.environ[WORKER_VARIABLE] = json.dumps(spec)
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(TABLE, 8), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((uses,), dtype="int32"), *layers])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse")
    x = np.random.default_rng(1).integers(0, TABLE, (12, uses))
    x[:, 1] = x[:, 0]  # equal rows within a worker
    x[6:, 0] = x[:6, 0]  # and between two
    y = np.linspace(0, 1, 12, dtype="float32").reshape(12, 1)
    phalanx.fit(model, x, y, batch_size=12, epochs=2, verbose=0, shuffle=False)
    return [np.array(v) for v in model.weights]


@pytest.mark.parametrize(
    ("workers", "uses", "reduce_dtype"),
    [(2, 5, None), *(pytest.param(3, n, None, marks=pytest.mark.full) for n in (5, 12_000)),
     pytest.param(2, 5, "bfloat16", marks=pytest.mark.full)],
    ids=["two", "three", "three_dense", "bfloat16"],
)  # fmt: skip
def test_equal_rows_are_added_up_before_they_travel(workers, uses, reduce_dtype, pool, tmp_path):
    expected = trained_embedding(uses, None)
    group = pool(workers, reduction=ReduceOptions(reduce_dtype=reduce_dtype))
    for weights in group.run(trained_embedding, args=(uses, str(tmp_path)), deadline=300):
        for ours, theirs in zip(weights, expected, strict=True):
            error = np.abs(ours - theirs).max() / np.abs(theirs).max()
            assert error <= (1e-5 if reduce_dtype is None else 1e-2)
    (plan,) = of_kind(tmp_path, "reduction_plan")
    assert [sparse["travels"] for sparse in plan["sparse"]] == ["summed_rows"]
    assert plan["reduce_dtype"] == reduce_dtype
    assert plan["bytes"] == (uses * 8 + 1) * (4 if reduce_dtype is None else 2)
    assert [bucket["tensors"] for bucket in plan["buckets"]] == [2]
    assert not of_kind(tmp_path, "reduction_plan", rank=1)


def of_kind(run_dir, kind, rank=0):
    path = records_path(run_dir, rank)
    records = read_records(path).records if path.exists() else []
    return [record for record in records if record["kind"] == kind]
