"""Compare the first batches of a Python generator between workers.

A generator that draws random numbers without a seed gives each worker other batches, of which each
would use its rows: no worker would notice. The values of some rows show it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.distributed.host_collectives import all_gather_arrays
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import WorkerMismatchError

_VALUES = 64  # of each array that are compared
_TOLERANCE = 1e-3  # of the largest value; other processors round in other ways


def assert_same_first_batches(
    strategy: tf.distribute.Strategy,
    topology: ReplicaTopology,
    call: str,
    batches: Sequence[Any],
) -> None:
    """Compare some values of `batches` with those of the chief; a collective for all workers.

    Raises:
        WorkerMismatchError: a worker's values differ by more than rounding.
    """
    if not topology.has_peers:
        return
    own = [_values_of(leaf) for batch in batches for leaf in keras.tree.flatten(batch)]
    of_each = all_gather_arrays(strategy, topology, own)
    odd = [
        rank
        for rank, values in enumerate(of_each)
        if not all(_are_close(*pair) for pair in zip(values, of_each[0], strict=False))
    ]
    if odd:
        raise WorkerMismatchError(
            f"{call} needs the same batches from the generator of every worker; those of worker(s) "
            f"{odd} differ from worker 0's. Give the random numbers that the generator draws a "
            "seed, and do not divide its data between workers (Phalanx hands each its share)."
        )


def _values_of(leaf: Any) -> np.ndarray:
    """Some values of an array of a batch, the same of every array of its size."""
    if isinstance(leaf, tf.SparseTensor):
        leaf = leaf.values
    elif isinstance(leaf, tf.RaggedTensor):
        leaf = leaf.flat_values
    elif hasattr(leaf, "tocoo"):  # SciPy's
        leaf = leaf.tocoo().data
    if not hasattr(leaf, "__array__"):
        return np.zeros(0)
    array = np.ravel(np.asarray(leaf))
    chosen = array[np.linspace(0, array.size - 1, _VALUES).astype(int)] if array.size else array
    if array.dtype.kind in "OSUT":
        return np.array([zlib.crc32(str(text).encode()) for text in chosen], np.float64)
    return chosen.astype(np.float64)


def _are_close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    finite = np.abs(other[np.isfinite(other)])
    largest = finite.max() if finite.size else 0.0
    return bool(np.allclose(one, other, rtol=0.0, atol=_TOLERANCE * largest, equal_nan=True))
