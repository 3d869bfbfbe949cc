"""Hand NumPy arrays of any dtype, or yes and no, from every worker to every worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.distributed.desync.check import Tensor, before_collective
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import WorkerMismatchError
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.phase_tracker import phase_tracker

_WORD = np.dtype(np.int64)  # what TensorFlow gathers on every kind of device


def all_gather_arrays(
    strategy: tf.distribute.Strategy, topology: ReplicaTopology, arrays: Sequence[Any]
) -> list[list[Any]]:
    """Every worker's `arrays`, by rank; a collective that all workers must call."""
    if not topology.has_peers:
        return [list(arrays)]
    words = pack_bytes(arrays)
    lengths = all_gather_rows(strategy, topology, np.array([words.size], _WORD))[:, 0]
    longest = np.zeros(max(lengths), _WORD)
    longest[: words.size] = words
    rows = all_gather_rows(strategy, topology, longest)
    return [unpack_bytes(row[:length]) for row, length in zip(rows, lengths, strict=True)]


def all_gather_rows(strategy: tf.distribute.Strategy, topology: ReplicaTopology, row: Any) -> Any:
    """One row per worker, by rank, from `row`: int64, one-dimensional, of equal length.

    A collective that all workers must call. The wait in it is not the time of a callback
    that calls it.
    """
    if not topology.has_peers:
        return row.reshape(1, -1)
    before_collective("what workers agree on", lambda: [_described(row)])
    with (
        phase_tracker.during("compute", instead_of="callbacks"),
        flight.collective("gather", row.nbytes),
    ):
        return strategy.collectives.all_gather(tf.constant(row.reshape(1, -1))).numpy()


def on_any_worker(
    strategy: tf.distribute.Strategy, topology: ReplicaTopology, *needs: bool
) -> list[bool]:
    """Of each need, whether some worker has it; a collective that all workers must call."""
    if not topology.has_peers:
        return list(needs)
    rows = all_gather_rows(strategy, topology, np.array(needs, np.int64))
    return [bool(need) for need in rows.any(axis=0)]


def broadcast_array(
    strategy: tf.distribute.Strategy, topology: ReplicaTopology, arrays: Sequence[Any]
) -> list[Any]:
    """The chief's `arrays`, bit by bit; a collective that all workers must call.

    Raises:
        WorkerMismatchError: this worker's arrays have other shapes or dtypes.
    """
    if not topology.has_peers:
        return list(arrays)
    words = pack_bytes(arrays)
    sizes = all_gather_rows(strategy, topology, np.array([words.size], _WORD))[:, 0]
    if len(set(sizes)) > 1:
        raise WorkerMismatchError(
            "Asked all workers to take over the chief's state, but the models differ: they take "
            f"{', '.join(f'{8 * size} bytes on worker {w}' for w, size in enumerate(sizes))}. "
            "Build the same model and optimizer on every worker."
        )
    before_collective("the chief's state", lambda: [_described(words)])
    with flight.collective("hand-over of the chief's state", words.nbytes):
        (chiefs,) = strategy.collectives.broadcast([tf.constant(words)])
    return unpack_bytes(chiefs.numpy())


def _described(row: Any) -> Tensor:
    return Tensor(name="a row", shape=tuple(row.shape), dtype=row.dtype.name)


def pack_bytes(arrays: Sequence[Any]) -> Any:
    """The arrays as one int64 vector: a JSON header and the raw bytes.

    Arrays of objects hold text, as TensorFlow's strings do, and come back as bytes.
    """
    # TensorFlow's own dtypes, bfloat16 among them, are known to NumPy by name alone.
    described = [[a.dtype.name if a.dtype.kind in "VO" else a.dtype.str, a.shape] for a in arrays]
    header = json.dumps(described).encode()
    contents = [_joined(a) if a.dtype == object else a.tobytes() for a in arrays]
    raw = b"".join([np.array([len(header)], _WORD).tobytes(), header, *contents])
    return np.frombuffer(raw + b"\0" * (-len(raw) % _WORD.itemsize), _WORD)


def unpack_bytes(words: Any) -> list[Any]:
    """What `pack_bytes` wrote."""
    raw = words.tobytes()
    start = _WORD.itemsize + int(words[0])
    arrays = []
    for name, shape in json.loads(raw[_WORD.itemsize : start]):
        count = int(np.prod(shape))
        if name == "object":
            texts, start = _split(raw, start, count)
            arrays.append(texts.reshape(shape))
            continue
        dtype = np.dtype(name) if name[0] in "<>|=" else tf.as_dtype(name).as_numpy_dtype
        array = np.frombuffer(raw, dtype, count, offset=start)
        arrays.append(array.reshape(shape))
        start += array.nbytes
    return arrays


def _joined(texts: np.ndarray) -> bytes:
    """Their lengths, then the texts: NumPy's arrays of bytes cut zeros off the end of each."""
    flat = [v if isinstance(v, bytes) else str(v).encode() for v in texts.flat]
    return b"".join([np.array([len(text) for text in flat], _WORD).tobytes(), *flat])


def _split(raw: bytes, start: int, count: int) -> tuple[np.ndarray, int]:
    """`count` texts that `_joined` wrote at `start`, and where they end."""
    lengths = np.frombuffer(raw, _WORD, count, offset=start)
    ends = start + lengths.nbytes + np.cumsum(lengths)
    texts = np.empty(count, object)
    texts[:] = [raw[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return texts, int(ends[-1]) if count else start
