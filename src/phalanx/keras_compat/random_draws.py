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
  functions of the step share (`DrawCounters`), which gives the same numbers. In eager steps, and
  for gamma, the replica draws for the global batch, and takes its rows.
- The others (categorical, binomial, Poisson) and those on a TPU draw from a seed of the replica's
  own.

Whatever draws by a shape passes the functions in `gen_stateless_random_ops_v2` and `gen_random_ops`
of `tensorflow.python.ops`: Keras's draws, `tf.nn.dropout`, `tf.random.Generator`. They are no
public API; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from phalanx.gradients.origin_of_rows import batches_in

SEED_STRIDE = 0x9E3779B1  # 2**32 / golden ratio: far apart for neighbouring replicas
_RESERVED = 256  # counters that TensorFlow reserves for 4 values of a truncated normal
_PHILOX, _THREEFRY = 1, 2  # numbers of algorithms, as TensorFlow has them


@dataclass(frozen=True, kw_only=True)
class ReplicaRows:
    """Which rows of a batch a replica holds.

    Attributes:
        start: the first of them, scalar int.
        count: how many, scalar int; 0 for a replica without any.
        total: those of the global batch, scalar int.
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

Seeds = tuple[int, int]

Advance = Callable[[Any], Any]
"""Advances the counter of a draw (int64) by so much; returns what it was."""

FindCounter = Callable[[Seeds], tuple[Seeds, Advance] | None]
"""Seeds and counter of the draw that is being traced with these seeds; None without a counter."""


class DrawCounters:
    """The counters of a step's stateful draws, one for each draw, shared by all its traces.

    A draw is known by the graph (of the step, or of a branch or loop in it) and its number there.
    Each replica has a counter. TensorFlow numbers the draws of a graph to seed them, and mirrored
    replicas share a graph, so all replicas take the seeds of the one that is traced first.
    """

    def __init__(self) -> None:
        """Counters start at 0, when a draw is first traced."""
        self._resources: dict[tuple[Any, ...], tf.Tensor] = {}
        self._seeds: dict[tuple[Any, ...], Seeds] = {}
        self._restored: dict[tuple[Any, ...], int] = {}

    def read(self) -> list[list[Any]]:
        """The counters of one replica, which are those of all, as JSON knows them."""
        first = min((replica for replica, *_ in self._resources), default=0)
        return [
            [*draw, int(tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int64))]
            for (replica, *draw), resource in self._resources.items()
            if replica == first
        ]

    def restore(self, counters: list[list[Any]]) -> None:
        """Continue from what `read` returned, also for draws that are traced later."""
        self._restored = {tuple(draw): value for *draw, value in counters}
        for (_, *draw), resource in self._resources.items():
            value = tf.constant(self._restored.get(tuple(draw), 0), tf.int64)
            tf.raw_ops.AssignVariableOp(resource=resource, value=value)

    def of_trace(self, replica: int) -> FindCounter:
        """Finds the counters of the draws of one trace, in the order in which they are traced."""
        root = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        draws_in: dict[int, int] = {}
        graphs: dict[str, list[Any]] = {}

        def next_counter(seeds: Seeds) -> tuple[Seeds, Advance] | None:
            if tf.executing_eagerly():
                return None
            graph = tf.compat.v1.get_default_graph()
            if not _is_within(root, graph):
                return None  # a function of the script's own is traced once, for all its callers
            name = "" if graph is root else re.sub(r"\d+", "", getattr(graph, "name", ""))
            known = graphs.setdefault(name, [])
            if id(graph) not in draws_in:
                known.append(graph)
            number = draws_in[id(graph)] = draws_in.get(id(graph), -1) + 1
            draw = name, known.index(graph), number
            return self._seeds.setdefault(draw, seeds), partial(self._advance, (replica, *draw))

        return next_counter

    def _advance(self, key: tuple[Any, ...], amount: Any) -> Any:
        if key not in self._resources:
            with tf.init_scope(), tf.device("CPU:0"):
                # Not tf.Variable: under a strategy that would be a variable of the replicas.
                self._resources[key] = resource = tf.raw_ops.VarHandleOp(
                    dtype=tf.int64, shape=[], shared_name=f"phalanx-draws-{uuid.uuid4()}"
                )
                tf.raw_ops.AssignVariableOp(
                    resource=resource, value=tf.constant(self._restored.get(key[1:], 0), tf.int64)
                )
        resource = self._resources[key]
        with tf.device("CPU:0"):
            before = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int64)
            tf.raw_ops.AssignAddVariableOp(resource=resource, value=amount)
        return before


def _is_within(root: Any, graph: Any) -> bool:
    """Whether `graph` is `root`, or that of a branch or a loop in it."""
    while graph is not root and getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph is root


def draws_by_rows(
    find: Find, find_counter: FindCounter = lambda seeds: None
) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that draws are those of the rows that `find` gives.

    Args:
        find: gives the rows of the replica.
        find_counter: gives the counter of the stateful draw that is being traced.
    """
    stateless = importlib.import_module("tensorflow.python.ops.gen_stateless_random_ops_v2")
    stateful = importlib.import_module("tensorflow.python.ops.gen_random_ops")
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
    }
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
        | {
            (stateful, n): _counted(
                getattr(stateful, n), partial(getattr, stateless, to), find, find_counter
            )
            for n, to in of_kernel.items()
        }
        | {(stateful, "random_gamma"): _of_whole(stateful.random_gamma, find)}
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
    value that it gives (GuardedPhiloxRandom in TensorFlow's `util/guarded_philox_random.h`).

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
        shape = given.arguments["shape"] = _as_tensor(given.arguments["shape"])
        rows = find()
        own = None if rows is None else _local_rows(rows, shape)
        drawn = tf.cast(shape if own is None else _whole(shape, own), tf.int64)
        before = advance(tf.reduce_prod(drawn) * _RESERVED)
        key, second = (tf.constant(seed, tf.int64) for seed in seeds)
        counter = tf.bitcast(tf.stack([before, second]), tf.uint64)
        key = tf.bitcast(key[None], tf.uint64)
        return stateless()(**given.arguments, key=key, counter=counter, alg=_PHILOX)

    return draw


def _of_whole(original: Callable[..., Any], find: Find) -> Callable[..., Any]:
    """Draw for the global batch, and take the replica's rows."""

    def draw(shape: Any, *args: Any, **options: Any) -> Any:
        rows = find()
        own = None if rows is None or _on_tpu() else _local_rows(rows, shape := _as_tensor(shape))
        if own is None:
            return original(shape, *args, **options)
        drawn = original(_whole(shape, own), *args, **options)
        taken = []
        for start, number in own.parts:
            begin = tf.minimum(start, own.total - number)  # without rows there is a stand-in
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
    """Advance a `tf.random.Generator` by what the global batch takes, on every replica."""

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
    count = tf.maximum(tf.cast(rows.count, tf.int64), 1)  # without rows there is a stand-in
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
