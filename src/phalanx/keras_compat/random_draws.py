"""Random numbers in a replica's step: the rows that one device draws for this replica's samples.

One device draws noise for a whole batch from one seed: a dropout mask, the latent vectors of a
VAE. A replica that holds rows `start` to `start + count` of the batch draws the same rows of the
same numbers, so N replicas together draw what one device does. Where the leading dimension of a
draw is no multiple of the replica's rows, one device draws the same for every sample, and so does
each replica.

- Philox, the generator of TensorFlow's stateless operations on CPUs and GPUs, is a function of a
  key and a counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the
  replica advances the counter, and draws nothing that belongs to others.
- `tf.random.normal` and the like keep a counter in their kernel, and each function that calls a
  step has kernels of its own: a step that is timed or sampled would draw other numbers.
  In a graph they draw by the stateless operation from the same key, and from a counter that all
  functions of the step share (`DrawCounters`), which gives the same numbers.
- For the others (categorical, binomial, Poisson, gamma with several concentrations), and in eager
  steps, the replica draws for the global batch, and takes its rows.
- `tf.random.shuffle` takes rows by the order of keys, of which the replica has those of its rows:
  `gradients/global_values.py` puts them together.
- On a TPU they draw from a seed of the replica's own.

Whatever draws passes the functions in four modules of `tensorflow.python.ops`: Keras's draws,
`tf.nn.dropout`, `tf.random.Generator`. They are no public API; guarded by
tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.gradients.origin_of_rows import puts_together, rows_put_together
from phalanx.keras_compat.draw_counters import FindCounter

SEED_STRIDE = 0x9E3779B1  # 2**32 / golden ratio: far apart for neighbouring replicas
_RESERVED = 256  # counters that TensorFlow reserves for 4 values of a truncated normal
_MODULES = (
    *("gen_stateless_random_ops_v2", "gen_stateless_random_ops"),
    *("gen_random_ops", "gen_stateful_random_ops"),
)
_PARAMETERS = (
    *("alpha", "counts", "lam", "logits", "maxvals"),
    *("means", "minvals", "probs", "rate", "stddevs"),
)
_PHILOX, _THREEFRY = 1, 2  # numbers of algorithms, as TensorFlow has them


@dataclass(frozen=True, kw_only=True)
class ReplicaRows:
    """Which rows of a batch a replica holds.

    Attributes:
        start: the first of them, scalar int.
        own_rows: how many, scalar int; for a replica without any, those that stand in.
        total: those of the global batch, scalar int.
        static_count: `own_rows` where it is known while the step is traced.
        replica: the replica's number.
        fewer: rows of this replica, scalars int, of the tensors of the batch that may have fewer
            than those that `own_rows` counts: labelled rows beside unlabelled ones.
    """

    start: Any
    own_rows: Any
    total: Any
    static_count: int | None
    replica: Any
    fewer: tuple[Any, ...] = ()


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


def draws_by_rows(
    find: Find,
    find_counter: FindCounter = lambda seeds: None,
    is_in_step: Callable[[], bool] = lambda: False,
) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that draws are those of the rows that `find` gives.

    Args:
        find: gives the rows of the replica.
        find_counter: gives the counter of the stateful draw that is being traced.
        is_in_step: whether a replica's step is being traced or run, of one replica or of many.
    """
    stateless, with_seed, stateful, with_generator = (
        importlib.import_module(f"tensorflow.python.ops.{name}") for name in _MODULES
    )
    counted = {
        "stateless_random_uniform_v2": 1,
        "stateless_random_uniform_int_v2": 1,
        "stateless_random_uniform_full_int_v2": 1,
        "stateless_random_normal_v2": 1,
        "stateless_truncated_normal_v2": _RESERVED,
    }
    of_kernel = {
        "random_standard_normal": "stateless_random_normal_v2",
        "random_uniform": "stateless_random_uniform_v2",
        "random_uniform_int": "stateless_random_uniform_int_v2",
        "truncated_normal": "stateless_truncated_normal_v2",
        "random_gamma": "stateless_random_gamma_v3",
    }
    of_whole = {
        with_seed: (
            "stateless_multinomial",
            "stateless_parameterized_truncated_normal",
            "stateless_random_binomial",
            "stateless_random_poisson",
        ),
        stateful: ("multinomial", "random_poisson_v2"),
        with_generator: ("stateful_random_binomial",),
    }
    gamma = stateless.stateless_random_gamma_v3
    bits = stateless.stateless_random_uniform_full_int_v2
    shuffle = stateless.stateless_shuffle
    prepare = (tf.random.Generator, "_prepare_key_counter")
    key = (tf.random.Generator, "_preprocess_key")
    return (
        {(stateless, n): _advanced(getattr(stateless, n), c, find) for n, c in counted.items()}
        | {
            (stateful, n): _counted(
                getattr(stateful, n), partial(getattr, stateless, to), find, find_counter
            )
            for n, to in of_kernel.items()
        }
        | {(stateless, "stateless_random_gamma_v3"): _of_gamma(gamma, find)}
        | {
            (module, name): _of_whole(getattr(module, name), find)
            for module, names in of_whole.items()
            for name in names
        }
        | {
            (stateful, "random_shuffle"): _shuffled(
                stateful.random_shuffle,
                find,
                partial(_places_of_counted, bits, find_counter),
                always=True,
            ),
            (stateless, "stateless_shuffle"): _shuffled(
                shuffle,
                find,
                lambda total, **of: tf.argsort(shuffle(tf.range(total), **of)),
                always=False,
            ),
        }
        | {
            prepare: _for_whole(getattr(*prepare), find),
            key: _of_all_replicas(getattr(*key), is_in_step),
        }
    )


def _advanced(
    original: Callable[..., Any], counters: int, find: Find, *, values: int | None = None
) -> Callable[..., Any]:
    """Draw from the counter on at which the replica's rows begin.

    Args:
        original: a draw of `shape` from a `key` and a `counter`.
        counters: how many of them four values take.
        find: gives the replica's rows.
        values: how many have a counter; None for as many as Philox gives at once.
    """

    def draw(shape: Any, key: Any, counter: Any, alg: Any, **options: Any) -> Any:
        rows = find()
        if rows is None:
            return original(shape, key=key, counter=counter, alg=alg, **options)
        shape = _as_tensor(shape)
        own = _local_rows(rows, shape)
        if own is None:
            return original(shape, key=key, counter=counter, alg=alg, **options)
        options.pop("name", None)  # parts cannot have one name
        if _is_threefry(alg):
            key = tf.bitcast(replica_seed(tf.bitcast(key, tf.int64), rows.replica), tf.uint64)
            return original(shape, key=key, counter=counter, alg=alg, **options)
        block = values or _values_at_once(**options)
        step = counters * block // 4 if counters > 1 else 1
        inner = _static(shape)[1:]
        is_divisible = inner.is_fully_defined() and math.prod(inner) % block == 0

        def rows_from(start: Any, number: Any) -> Any:
            part = tf.concat([tf.cast(number, shape.dtype)[None], shape[1:]], 0)
            first = start * tf.reduce_prod(tf.cast(shape[1:], tf.int64))
            later = _later(counter, first // block * step)
            if is_divisible:
                return original(part, key=key, counter=later, alg=alg, **options)
            size = tf.reduce_prod(tf.cast(part, tf.int64))
            more = (size + block - 1)[None]
            drawn = original(more, key=key, counter=later, alg=alg, **options)
            return tf.reshape(tf.slice(drawn, [first % block], size[None]), part)

        drawn = [rows_from(start, number) for start, number in own.parts]
        return tf.ensure_shape(_together(drawn), _static(shape))

    return draw


def _values_at_once(dtype: Any = None, minval: Any = None, **_: Any) -> int:
    """How many values of a dtype one call of Philox gives."""
    dtype = tf.as_dtype(dtype or getattr(minval, "dtype", tf.float32))
    return 2 if dtype.size == 8 else 4


def _later(counter: Any, skipped: Any) -> Any:
    """A counter of Philox, uint64, advanced."""
    more = tf.pad(skipped[None], [[0, tf.size(counter) - 1]])
    return tf.bitcast(tf.bitcast(counter, tf.int64) + more, tf.uint64)


def _counted(
    original: Callable[..., Any],
    stateless: Callable[[], Callable[..., Any]],
    find: Find,
    find_counter: FindCounter,
) -> Callable[..., Any]:
    """Draw what the stateful operation does, from a counter that all functions of a step share.

    Its kernel starts at the key `seed` and the counter `(0, seed2)`, and advances by 256 for each
    value that it gives (GuardedPhiloxRandom in TensorFlow's `util/guarded_philox_random.h`). It
    appends the shape of a parameter (gamma's `alpha`) to `shape`, the stateless one does not.

    Args:
        original: the stateful operation, a draw of `shape`.
        stateless: gives the stateless operation of the same distribution, as it is patched.
        find: gives the replica's rows.
        find_counter: gives the counter of the draw.
    """
    signature = inspect.signature(original)
    of_whole = _of_whole(original, find)

    def draw(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        seeds = given.arguments.pop("seed") or 0, given.arguments.pop("seed2") or 0
        found = find_counter(seeds) if any(seeds) and not _on_tpu() else None
        if found is None:
            return of_whole(*args, **options)
        seeds, advance = found
        shape = _as_tensor(given.arguments["shape"])
        if "alpha" in given.arguments:
            appended = tf.shape(given.arguments["alpha"], out_type=shape.dtype)
            shape = tf.concat([tf.reshape(shape, [-1]), appended], 0)
        given.arguments["shape"] = shape
        rows = find()
        own = None if rows is None else _local_rows(rows, shape)
        drawn = tf.cast(shape if own is None else _whole(shape, own), tf.int64)
        before = advance(tf.reduce_prod(drawn) * _RESERVED)
        key, second = (tf.constant(seed, tf.int64) for seed in seeds)
        counter = tf.bitcast(tf.stack([before, second]), tf.uint64)
        key = tf.bitcast(key[None], tf.uint64)
        return stateless()(**given.arguments, key=key, counter=counter, alg=_PHILOX)

    return draw


def _of_gamma(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Draw from the counter on where all values have one `alpha`; else for the global batch.

    With several, the values of the first of them are drawn first, those of all rows.
    """
    advanced = _advanced(original, 4 * _RESERVED, find, values=1)
    of_whole = _of_whole(original, find)

    def draw(shape: Any, key: Any, counter: Any, alg: Any, alpha: Any, name: Any = None) -> Any:
        is_one = not tf.convert_to_tensor(alpha).shape.rank
        draw_rows = advanced if is_one or _is_threefry(alg) else of_whole
        return draw_rows(shape, key=key, counter=counter, alg=alg, alpha=alpha, name=name)

    return draw


def _of_whole(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Draw for the global batch, and take the replica's rows.

    Where each row has parameters of its own (logits), others' rows get the first of them.
    """
    signature = inspect.signature(original)
    appends = "seed2" in signature.parameters  # the shape of a parameter to `shape`

    def draw(*args: Any, **options: Any) -> Any:
        rows = find()
        if rows is None:
            return original(*args, **options)
        given = signature.bind(*args, **options)
        of = given.arguments
        parameters = {name: tf.convert_to_tensor(of[name]) for name in _PARAMETERS if name in of}
        shape = _as_tensor(of.get("shape", ()))
        rank = _static(shape).rank
        drawn_by = tf.shape(_highest(parameters.values())) if parameters and not rank else shape
        own = _local_rows(rows, drawn_by)
        if own is None:
            return original(*args, **options)
        if _on_tpu():
            if not appends:
                of["seed"] = replica_seed(of["seed"], rows.replica)
            return original(*given.args, **given.kwargs)
        known = _static(drawn_by)
        leading = known[0]
        for name, values in parameters.items():
            if values.shape.rank == known.rank and values.shape[0] == leading:
                of[name] = values if appends and rank else _spread(values, own)
        if rank:
            of["shape"] = _whole(shape, own)
        drawn = _taken(original(*given.args, **given.kwargs), own)
        return tf.ensure_shape(drawn, tf.TensorShape([leading]).concatenate(drawn.shape[1:]))

    return draw


def _highest(tensors: Iterable[Any]) -> Any:
    return max(tensors, key=lambda tensor: tensor.shape.rank or 0)


def _taken(drawn: Any, own: _Own) -> Any:
    """The replica's rows of a draw for the global batch."""
    parts = []
    for start, number in own.parts:
        begin = tf.minimum(start, own.total - number)  # without rows there is a stand-in
        parts.append(drawn[begin : begin + number])
    return _together(parts)


def _spread(values: Any, own: _Own) -> Any:
    """What `_taken` makes `values` of."""
    count = tf.shape(values)[0]
    places = _taken(tf.range(own.total), own)
    index = tf.scatter_nd(places[:, None], tf.range(count), own.total[None])
    return tf.gather(values, index)


def _shuffled(
    original: Callable[..., Any], find: Find, places: Callable[..., Any], *, always: bool
) -> Callable[..., Any]:
    """Shuffle rows by the order of keys, of which a replica has those of its rows.

    Args:
        original: shuffles `value`.
        find: gives the replica's rows.
        places: gives the place after the shuffle of each of some rows, from their number and the
            other arguments of `original`; None where that is unknown.
        always: also what has no row for each of the batch.
    """

    def shuffle(value: Any, **options: Any) -> Any:
        value = tf.convert_to_tensor(value)
        rows = find() if value.shape.rank and not _on_tpu() else None
        is_of_batch = rows is not None and value.shape[0] in (None, rows.static_count)
        own = _local_rows(rows, tf.shape(value)) if rows is not None and is_of_batch else None
        keys = None
        if own is not None:
            keys = places(own.total, **options)
        elif always and value.shape.rank:
            keys = places(tf.shape(value, tf.int64)[0], **options)
        if keys is None:
            return original(value, **options)
        keys = tf.ensure_shape(keys, [None])
        return tf.gather(value, tf.argsort(keys if own is None else _taken(keys, own)))

    return shuffle


def _places_of_counted(
    bits: Callable[..., Any], find_counter: FindCounter, total: Any, **options: Any
) -> Any:
    """The places that `tf.random.shuffle` gives rows.

    Its kernel takes an integer for each row from a counter as in `_counted`, and exchanges row `i`
    with one of those from `i` on (TensorFlow's `core/kernels/random_shuffle_op.cc`).
    """
    seeds = options.get("seed") or 0, options.get("seed2") or 0
    found = find_counter(seeds) if any(seeds) and not _on_tpu() else None
    if found is None:
        return None
    seeds, advance = found
    before = advance((total + 2) // 4)  # one for each row but the last, four from one counter
    key, second = (tf.constant(one, tf.int64) for one in seeds)
    counter = tf.bitcast(tf.stack([before, second]), tf.uint64)
    key = tf.bitcast(key[None], tf.uint64)
    numbers = bits(total[None], key=key, counter=counter, alg=_PHILOX, dtype=tf.uint32)
    return tf.numpy_function(_places, [numbers], tf.int64, stateful=False)


def _places(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where each row is after a shuffle by these integers, int64."""
    order = list(range(len(numbers)))
    for i, number in enumerate(numbers.tolist()[:-1]):
        j = i + number % (len(order) - i)
        order[i], order[j] = order[j], order[i]
    return np.argsort(order)


def _for_whole(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Advance a `tf.random.Generator` by what the global batch takes, on every replica."""

    def prepare(self: Any, shape: Any) -> Any:
        rows = find()
        own = None if rows is None else _local_rows(rows, shape := _as_tensor(shape))
        return original(self, shape if own is None else _whole(shape, own))

    return prepare


def _of_all_replicas(
    original: Callable[..., Any], is_in_step: Callable[[], bool]
) -> Callable[..., Any]:
    """Keep the key of a `tf.random.Generator`, which has one for each replica of a strategy."""

    def preprocess(self: Any, key: Any) -> Any:
        return key if is_in_step() else original(self, key)

    return preprocess


def replica_seed(seed: Any, replica: Any) -> Any:
    """A seed that only `replica` has, its first number moved; that of replica 0 is `seed`."""
    seed = tf.convert_to_tensor(seed)
    offset = tf.cast(replica, tf.int64) * SEED_STRIDE
    return seed + tf.pad(tf.cast(offset, seed.dtype)[None], [[0, tf.size(seed) - 1]])


def _local_rows(rows: ReplicaRows, shape: Any) -> _Own | None:
    """The replica's rows of a draw of `shape`; None where all replicas draw the same.

    A leading dimension of several times the replica's rows holds several entries for each row, or
    the rows of several batches that the step puts together.
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
        if times > 1 and puts_together(known[0], times):
            each = tf.constant(rows.static_count, tf.int64)
            return _Own(
                parts=tuple((i * total + start, each) for i in range(times)), total=total * times
            )
        return _Own(parts=((start * times, leading),), total=total * times)
    parts, whole = [], tf.constant(0, tf.int64)
    for number in rows_put_together(shape):
        first, of_all = _place_of(number, rows)
        parts.append((whole + first, number))
        whole += of_all
    return _Own(parts=tuple(parts), total=whole)


def _place_of(number: Any, rows: ReplicaRows) -> tuple[Any, Any]:
    """Of so many rows of the replica the first one, and how many all replicas have.

    Those of a batch, of some batches put together, and of unlike ones are the replica's. Others are
    the same on all replicas.
    """
    start, count, total = (
        tf.cast(one, tf.int64) for one in (rows.start, rows.own_rows, rows.total)
    )
    besides = [tf.constant(0, tf.int64), *(tf.cast(fewer, tf.int64) for fewer in rows.fewer)]
    is_by_row = tf.reduce_any(
        [tf.logical_and(number >= one, tf.equal((number - one) % count, 0)) for one in besides]
    )
    first = tf.where(is_by_row, start * number // count, 0)
    return first, tf.where(is_by_row, total * number // count, number)


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
