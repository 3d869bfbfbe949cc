"""Random numbers in a replica's step: the rows that one device draws for this replica's samples.

One device draws noise for a whole batch from one seed: a dropout mask, the latent vectors of a
VAE. A replica that holds rows `start` to `start + count` of the batch draws the same rows of the
same numbers, so N replicas together draw what one device does. Where the leading dimension of a
draw is no multiple of the replica's rows, one device draws the same for every sample, and so does
each replica.

- Philox, the generator of TensorFlow's stateless operations on CPUs and GPUs, is a function of a
  key and a counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the
  replica advances the counter, and draws nothing that belongs to others.
- `tf.random.normal` and the like keep a state that nobody can advance: the replica draws for the
  whole batch, and takes its rows.
- The others (gamma, categorical, binomial, Poisson) and those on a TPU draw from a seed of the
  replica's own.

Whatever draws by a shape passes the functions in `gen_stateless_random_ops_v2` and `gen_random_ops`
of `tensorflow.python.ops`: Keras's draws, `tf.nn.dropout`, `tf.random.Generator`. They are no
public API; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.origin_of_rows import batches_in

SEED_STRIDE = 0x9E3779B1  # 2**32 / golden ratio: far apart for neighbouring replicas
_RESERVED = 256  # counters that TensorFlow reserves for 4 values of a truncated normal
_THREEFRY = 2


@dataclass(frozen=True, kw_only=True)
class ReplicaRows:
    """Which rows of a batch a replica holds.

    Attributes:
        start: the first of them, scalar int.
        count: how many, scalar int; 0 for a replica without any.
        total: those of the whole batch, scalar int.
        static_count: `count` where it is known while the step is traced.
        replica: the replica's number.
    """

    start: Any
    count: Any
    total: Any
    static_count: int | None
    replica: Any


@dataclass(frozen=True, kw_only=True)
class _Own:
    """The rows of a draw that are the replica's; scalars int64.

    Attributes:
        parts: (start, rows) of neighbouring rows, in order: one part, or one for each of the
            batches that were put together before the draw.
        total: the rows of the whole draw.
    """

    parts: tuple[tuple[Any, Any], ...]
    total: Any


Find = Callable[[], ReplicaRows | None]
"""The rows of the replica whose step is being traced or run; None outside of one."""


def draws_by_rows(find: Find) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that draws are those of the rows that `find` gives."""
    stateless = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops_v2")
    stateful = importlib.import_module("tensorflow.python.ops.gen_random_ops")
    counted = {
        "stateless_random_uniform_v2": 1,
        "stateless_random_uniform_int_v2": 1,
        "stateless_random_uniform_full_int_v2": 1,
        "stateless_random_normal_v2": 1,
        "stateless_truncated_normal_v2": _RESERVED,
    }
    whole = (
        "random_standard_normal",
        "random_uniform",
        "random_uniform_int",
        "truncated_normal",
        "random_gamma",
    )
    by_seed = (
        "stateless_binomial",
        "stateless_categorical",
        "stateless_gamma",
        "stateless_parameterized_truncated_normal",
        "stateless_poisson",
    )
    prepare = (tf.random.Generator, "_prepare_key_counter")
    return (
        {(stateless, n): _advanced(getattr(stateless, n), c, find) for n, c in counted.items()}
        | {(stateful, name): _of_whole(getattr(stateful, name), find) for name in whole}
        | {(tf.random, name): _by_replica_seed(getattr(tf.random, name), find) for name in by_seed}
        | {prepare: _for_whole(getattr(*prepare), find)}
    )


def _advanced(original: Callable[..., Any], counters: int, find: Find) -> Callable[..., Any]:
    """Draw from the counter on at which the replica's rows begin.

    Args:
        original: a draw of `shape` from a `key` and a `counter`.
        counters: how many of them a block of values takes.
        find: gives the replica's rows.
    """

    def draw(shape: Any, key: Any, counter: Any, alg: Any, **options: Any) -> Any:
        rows = find()
        if rows is None:
            return original(shape, key=key, counter=counter, alg=alg, **options)
        shape = _as_tensor(shape)
        own = _local_rows(rows, shape)
        if own is None:
            return original(shape, key=key, counter=counter, alg=alg, **options)
        if _is_threefry(alg):
            key = tf.bitcast(replica_seed(tf.bitcast(key, tf.int64), rows.replica), tf.uint64)
            return original(shape, key=key, counter=counter, alg=alg, **options)
        dtype = tf.as_dtype(options.get("dtype") or getattr(options.get("minval"), "dtype", "f4"))
        block = 2 if dtype.size == 8 else 4  # values that one call of Philox gives
        step = counters * block // 4 if counters > 1 else 1
        inner = _static(shape)[1:]
        is_whole = inner.is_fully_defined() and math.prod(inner) % block == 0

        def rows_from(start: Any, number: Any) -> Any:
            part = tf.concat([tf.cast(number, shape.dtype)[None], shape[1:]], 0)
            first = start * tf.reduce_prod(tf.cast(shape[1:], tf.int64))
            later = _later(counter, first // block * step)
            if is_whole:
                return original(part, key=key, counter=later, alg=alg, **options)
            size = tf.reduce_prod(tf.cast(part, tf.int64))
            more = (size + block - 1)[None]
            drawn = original(more, key=key, counter=later, alg=alg, **options)
            return tf.reshape(tf.slice(drawn, [first % block], size[None]), part)

        drawn = [rows_from(start, number) for start, number in own.parts]
        return tf.ensure_shape(_together(drawn), _static(shape))

    return draw


def _later(counter: Any, skipped: Any) -> Any:
    """A counter of Philox, uint64, advanced."""
    more = tf.pad(skipped[None], [[0, tf.size(counter) - 1]])
    return tf.bitcast(tf.bitcast(counter, tf.int64) + more, tf.uint64)


def _of_whole(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Draw for the whole batch, and take the replica's rows."""

    def draw(shape: Any, *args: Any, **options: Any) -> Any:
        rows = find()
        own = None if rows is None or _on_tpu() else _local_rows(rows, shape := _as_tensor(shape))
        if own is None:
            return original(shape, *args, **options)
        drawn = original(_whole(shape, own), *args, **options)
        taken = []
        for start, number in own.parts:
            begin = tf.minimum(start, own.total - number)  # without rows one stands in
            taken.append(drawn[begin : begin + number])
        known = _static(shape)
        return tf.ensure_shape(_together(taken), known.concatenate(drawn.shape[known.rank :]))

    return draw


def _by_replica_seed(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Draw from a seed of the replica's own, where it draws by rows."""
    signature = inspect.signature(original)

    def draw(*args: Any, **options: Any) -> Any:
        rows = find()
        if rows is None:
            return original(*args, **options)
        given = signature.bind(*args, **options)
        of = given.arguments
        shape = _as_tensor(of["shape"]) if "shape" in of else tf.shape(of["logits"])
        if _local_rows(rows, shape) is not None:
            of["seed"] = replica_seed(of["seed"], rows.replica)
        return original(*given.args, **given.kwargs)

    return draw


def _for_whole(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Advance a `tf.random.Generator` by what the whole batch takes, on every replica."""

    def prepare(self: Any, shape: Any) -> Any:
        rows = find()
        own = None if rows is None else _local_rows(rows, shape := _as_tensor(shape))
        return original(self, shape if own is None else _whole(shape, own))

    return prepare


def replica_seed(seed: Any, replica: Any) -> Any:
    """A seed that only `replica` has, its first number moved; that of replica 0 is `seed`."""
    seed = tf.convert_to_tensor(seed)
    offset = tf.cast(replica, tf.int64) * SEED_STRIDE
    return seed + tf.pad(tf.cast(offset, seed.dtype)[None], [[0, tf.size(seed) - 1]])


def _local_rows(rows: ReplicaRows, shape: Any) -> _Own | None:
    """The replica's rows of a draw of `shape`; None where all replicas draw the same.

    A leading dimension of several times the replica's rows holds several entries for each row.
    """
    known = _static(shape)
    if not known.rank:
        return None
    start, total = tf.cast(rows.start, tf.int64), tf.cast(rows.total, tf.int64)
    if known[0] is not None:
        if not rows.static_count or known[0] % rows.static_count:
            return None
        times = known[0] // rows.static_count
        leading = tf.constant(known[0], tf.int64)
        return _Own(parts=((start * times, leading),), total=total * times)
    leading = tf.cast(shape[0], tf.int64)
    count = tf.maximum(tf.cast(rows.count, tf.int64), 1)  # without rows one stands in
    times = leading // count
    is_by_row = tf.equal(times * count, leading)
    first = tf.where(is_by_row, start * times, 0)
    whole = tf.where(is_by_row, total * times, leading)
    batches = batches_in(shape)
    if batches == 1:
        return _Own(parts=((first, leading),), total=whole)
    each, times = leading // batches, times // batches
    is_equal = tf.equal(times * batches * count, leading)
    parts = []
    for i in range(batches):
        begin = tf.where(is_equal, i * total * times + start * times, first + i * each)
        parts.append((begin, each if i < batches - 1 else leading - each * i))
    return _Own(parts=tuple(parts), total=whole)


def _together(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def _whole(shape: Any, own: _Own) -> Any:
    return tf.concat([tf.cast(own.total, shape.dtype)[None], shape[1:]], 0)


def _as_tensor(shape: Any) -> Any:
    """A shape of integers and scalar tensors as a tensor, int32 or int64."""
    shape = tf.convert_to_tensor(shape)
    return shape if shape.dtype.is_integer else tf.cast(shape, tf.int32)  # of () it is float32


def _static(shape: Any) -> tf.TensorShape:
    """What is known of a shape while it is traced."""
    if isinstance(shape, tf.Tensor) and not tf.is_symbolic_tensor(shape):
        return tf.TensorShape(shape.numpy())
    return tf.fill(shape, False).shape


def _is_threefry(alg: Any) -> bool:
    return _on_tpu() or (isinstance(alg, int) and alg == _THREEFRY)


def _on_tpu() -> bool:
    return isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
