"""Options of the reduction, buckets, and sums of values that travel in 16 bits."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.cluster.reduce_options import ReduceOptions, check_reduce_options
from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.collectives import Collectives
from phalanx.errors import ConfigurationError
from phalanx.gradients.buckets import automatic_bucket_mb, plan_buckets
from phalanx.gradients.indexed_slices import sum_duplicates
from phalanx.gradients.reduced_dtype import largest_summand, sum_reduced
from phalanx.gradients.sparse_rows import as_it_travels, choose_travel
from phalanx.keras_compat.optimizer_clippers import adds_rows


class TestOptions:
    @pytest.mark.parametrize(
        "requested",
        [{"bucket_mb": -1}, {"bucket_mb": math.nan}, {"bucket_mb": math.inf},
         {"reduce_dtype": "int8"}],
    )  # fmt: skip
    def test_values_out_of_range(self, requested):
        with pytest.raises(ConfigurationError):
            ReduceOptions(**requested)

    @pytest.mark.parametrize(
        ("strategy", "requested"),
        [("mirrored", {"bucket_mb": 1}), ("single", {"reduce_dtype": "bfloat16"}),
         ("parameter-server", {"bucket_mb": 0}), ("tpu", {"bucket_mb": 4}),
         ("horovod", {"reduce_dtype": "bfloat16"})],
    )  # fmt: skip
    def test_strategies_that_have_no_use_for_them(self, strategy, requested):
        with pytest.raises(ConfigurationError):
            check_reduce_options(ReduceOptions(**requested), strategy)

    @pytest.mark.parametrize("strategy", ["auto", "multiworker", "horovod"])
    def test_strategies_of_many_workers(self, strategy):
        check_reduce_options(ReduceOptions(bucket_mb=4, reduce_dtype="float16"), strategy)
        check_reduce_options(ReduceOptions(), "mirrored")

    def test_they_reach_the_worker(self):
        requested = ReduceOptions(bucket_mb=2.5, reduce_dtype="bfloat16")
        spec = WorkerSpec(rank=0, world_size=1, reduction=requested)
        assert WorkerSpec.from_environment(spec.to_environment()) == spec


class TestBuckets:
    def plan(self, sizes, bucket_mb, dtype=tf.float32):
        """The buckets of gradients of `sizes` float32 entries, planned in a graph."""
        found = []

        @tf.function
        def step(x):
            tensors = [tf.zeros([size], dtype) + tf.cast(x, dtype) for size in sizes]
            found.append(plan_buckets(tensors, bucket_mb=bucket_mb))

        step.get_concrete_function(tf.TensorSpec([]))
        return found[0]

    def test_the_last_come_first(self):
        assert self.plan([100] * 4, 4e-4) == [[3], [2], [1], [0]]
        assert self.plan([100] * 4, 8e-4) == [[2, 3], [0, 1]]

    def test_a_bucket_comes_as_near_to_its_size_as_it_can(self):
        # Kernel, bias, kernel, bias: a bias travels with the kernel beside it.
        assert self.plan([1000, 1, 1000, 1], 4e-3) == [[2, 3], [0, 1]]
        assert self.plan([5000, 10, 10], 4e-3) == [[1, 2], [0]]

    def test_zero_is_one_piece(self):
        assert self.plan([10**6] * 5, 0) == [[0, 1, 2, 3, 4]]

    def test_automatic(self):
        assert self.plan([1000] * 8, None) == [list(range(8))]
        assert len(self.plan([1_250_000] * 8, None)) == 8
        assert automatic_bucket_mb(8.0) == 0
        assert automatic_bucket_mb(16.0) == 4
        assert automatic_bucket_mb(1000.0) == 25

    def test_automatic_is_one_piece_where_nothing_overlaps(self):
        big = [tf.zeros([1_250_000])] * 8
        assert len(plan_buckets(big, bucket_mb=None)) == 1, "eagerly"
        found = []

        @tf.function
        def step():
            made = tf.split(tf.zeros([10_000_000]), 8)
            found.append(plan_buckets(made, bucket_mb=None))

        step.get_concrete_function()
        assert len(found[0]) == 1, "one operation makes all"

    def test_a_dtype_has_its_own(self):
        mixed = [tf.zeros([10]), tf.zeros([10], tf.float16), tf.zeros([10])]
        assert plan_buckets(mixed, bucket_mb=0) == [[1], [0, 2]]

    def test_a_shape_that_is_not_known(self):
        @tf.function
        def step(x):
            known = tf.zeros([2_500_000]) + x[0]
            assert len(plan_buckets([known, known, x], bucket_mb=None)) == 1
            assert sum(map(len, plan_buckets([known, known, x], bucket_mb=10))) == 3

        step.get_concrete_function(tf.TensorSpec([None]))

    def test_nothing(self):
        assert plan_buckets([], bucket_mb=None) == []


class Together(Collectives):
    """What one of several workers sees whose others send given values."""

    carriers = {}  # noqa: RUF012

    def __init__(self, others):
        super().__init__(rank=0, size=len(others) + 1, device="CPU:0")
        self.others = others
        self.sent = []

    def sum(self, tensor):
        self.sent.append(tensor.dtype)
        return tf.add_n([tensor, *(tf.cast(other, tensor.dtype) for other in self.others)])

    def concatenate(self, tensor):
        self.sent.append(tensor.dtype)
        (other,) = self.others
        return tf.concat([tensor, other(tensor)], 0)

    def sum_slices(self, slices):
        return slices


def sums_of_two(first, second, reduce_dtype):
    """What both workers get: the second's run shows what it sends to the first."""
    sent = []

    def note(tensor):
        sent.append(tensor)
        return tensor

    sum_reduced(tf.constant(second), Together([note]), reduce_dtype)
    own = sum_reduced(tf.constant(first), Together([lambda _: sent[0]]), reduce_dtype)
    assert own.dtype == tf.constant(first).dtype
    return own.numpy()


@pytest.mark.parametrize("entries", [1, 2, 7, 1000])
@pytest.mark.parametrize(("reduce_dtype", "error"), [("bfloat16", 2**-8), ("float16", 2**-10)])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_two_workers_add_up_in_float32(entries, reduce_dtype, error, size):
    rng = np.random.default_rng(entries)
    first, second = (size * rng.normal(size=(2, entries)).astype("float32")).astype("float32")
    total = sums_of_two(first, second, reduce_dtype)
    bound = error * (np.abs(first).max() + np.abs(second).max())
    assert np.abs(total - (first.astype("float64") + second)).max() <= bound
    assert np.array_equal(total, sums_of_two(second, first, reduce_dtype)), "not the same bits"


@pytest.mark.parametrize("reduce_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(reduce_dtype, bad):
    first = np.float32([1, bad, 3, 0])
    total = sums_of_two(first, np.float32([1, 1, 1, 1]), reduce_dtype)
    assert np.isfinite(total).tolist() == [True, False, True, True]


@pytest.mark.parametrize("reduce_dtype", ["bfloat16", "float16"])
def test_zeros_and_sizes_that_differ(reduce_dtype):
    assert sums_of_two(np.zeros(3, "float32"), np.zeros(3, "float32"), reduce_dtype).tolist() == [
        0.0,
        0.0,
        0.0,
    ]
    # One worker's values need another scale than the other's.
    total = sums_of_two(np.float32([1e8, 2e8]), np.float32([1e-4, 1.0]), reduce_dtype)
    np.testing.assert_allclose(total, [1e8, 2e8], rtol=2**-8)


@pytest.mark.parametrize("workers", [3, 4, 5])
@pytest.mark.parametrize("reduce_dtype", ["bfloat16", "float16"])
def test_more_workers_leave_the_sum_to_the_collective(workers, reduce_dtype):
    divisor = {3: 4, 4: 4, 5: 8}[workers] if reduce_dtype == "float16" else 1
    values = np.float32([40000.0, 1.0, -2.0])
    together = Together([tf.constant(values / divisor)] * (workers - 1))
    total = sum_reduced(tf.constant(values), together, reduce_dtype)
    assert [dtype.name for dtype in together.sent] == [reduce_dtype]
    np.testing.assert_allclose(total, workers * values, rtol=2**-7)
    limit = largest_summand(together, reduce_dtype)
    assert (limit is None) == (reduce_dtype == "bfloat16")
    assert limit is None or 65504 <= limit <= 2 * 65504


ROWS = [[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0], [0.5, 0.5]]
PLACES = [1, 1, 3, 3]


def after_three_steps(optimizer, gradient):
    variable = keras.Variable(tf.ones([4, 2]))
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply([gradient], [variable])
    return [np.array(v) for v in (variable, *optimizer.variables)]


@pytest.mark.parametrize(
    ("make", "adds"),
    [
        (lambda: keras.optimizers.SGD(0.1), True),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), True),
        (lambda: keras.optimizers.Lion(0.1), True),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), True),
        (lambda: keras.optimizers.SGD(0.1, clipnorm=1.0), False),
        (lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0), False),
        (lambda: keras.optimizers.SGD(0.1, clipvalue=1.0), False),
        (lambda: keras.optimizers.Adam(0.1), False),
        (lambda: keras.optimizers.Adagrad(0.1), False),
        (lambda: keras.optimizers.RMSprop(0.1), False),
    ],
)
def test_which_optimizers_of_keras_only_add_rows_up(make, adds):
    """Held against Keras: where this fails, `adds_rows` has to follow."""
    raw = tf.IndexedSlices(tf.constant(ROWS), tf.constant(PLACES), tf.constant([4, 2]))
    before = after_three_steps(make(), raw)
    summed = after_three_steps(make(), sum_duplicates(raw))
    dense = after_three_steps(make(), tf.convert_to_tensor(raw))
    same = [
        all(np.allclose(a, b, atol=1e-6) for a, b in zip(before, other, strict=True))
        for other in (summed, dense)
    ]
    assert adds_rows(make()) == adds
    assert same == [adds, adds]


def test_a_subclass_may_do_anything_with_rows():
    class Own(keras.optimizers.SGD):
        pass

    assert not adds_rows(Own(0.1))
    clipped = keras.optimizers.SGD(0.1)
    phalanx.clip.attach(clipped, phalanx.clip.clip_by_norm(1.0))
    assert not adds_rows(clipped)


@pytest.mark.parametrize(
    ("shape", "adds", "travels"),
    [((100, 8), True, "dense"), ((100_000, 8), True, "summed_rows"), ((100, 8), False, "rows")],
)
def test_how_sparse_gradients_travel(shape, adds, travels):
    table = tf.Variable(tf.zeros(shape))
    slices = tf.IndexedSlices(tf.ones([3, 8]), tf.constant([7, 2, 7]), tf.constant(shape))
    assert choose_travel(slices, table, adds_rows=adds) == travels
    sent = as_it_travels(slices, table, travels)
    rows = tf.shape(sent if travels == "dense" else sent.values)[0]
    assert int(rows) == {"dense": shape[0], "summed_rows": 2, "rows": 3}[travels]
    np.testing.assert_array_equal(tf.convert_to_tensor(sent), tf.convert_to_tensor(slices))
