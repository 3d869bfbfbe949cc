"""Hand NumPy arrays of any dtype from every worker to every worker."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.place import ReplicaPlace, this_replica


def all_gather_arrays(
    strategy: tf.distribute.Strategy, place: ReplicaPlace, arrays: Sequence[Any]
) -> list[list[Any]]:
    """Every worker's `arrays`, by rank; a collective that all workers must call.

    The arrays travel as bytes, since TensorFlow gathers only numbers of some widths.
    """
    if not place.has_peers:
        return [list(arrays)]
    words = _to_words(arrays)
    lengths = _gather(strategy, place, np.array([words.size], np.int64))[:: place.local]
    everything = _gather(strategy, place, words)
    ends = np.cumsum(lengths)
    return [
        _from_words(everything[end - length : end])
        for end, length in zip(ends, lengths, strict=True)
    ]


def _gather(strategy: tf.distribute.Strategy, place: ReplicaPlace, vector: Any) -> Any:
    """Concatenate what the first replica of every worker brings."""
    alone = vector.size == 1

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def gather(own: tf.Tensor) -> Any:
        def on_replica(own: tf.Tensor) -> Any:
            speaks = alone or this_replica() == place.first
            context = tf.distribute.get_replica_context()
            # A tensor made in the step, since TensorFlow asks on which device it lives.
            return context.all_gather(tf.identity(own if speaks else own[:0]), axis=0)

        return strategy.experimental_local_results(strategy.run(on_replica, args=(own,)))[0]

    return gather(tf.constant(vector)).numpy()


def _to_words(arrays: Sequence[Any]) -> Any:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    raw = buffer.getvalue()
    length = np.array([len(raw)], np.int64).tobytes()
    padded = length + raw + b"\0" * (-len(raw) % 4)
    return np.frombuffer(padded, np.int32)


def _from_words(words: Any) -> list[Any]:
    raw = words.tobytes()
    length = int(np.frombuffer(raw[:8], np.int64)[0])
    with np.load(io.BytesIO(raw[8 : 8 + length])) as archive:
        return [archive[f"arr_{i}"] for i in range(len(archive.files))]
