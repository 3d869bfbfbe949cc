"""Which worker writes which rows of which tensor: the same plan on every worker."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.checkpoint.manifest import Piece

TensorSpecs = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype by tensor."""


def describe(arrays: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array; a dtype may be NumPy's or its name."""
    return {
        name: (tuple(array.shape), getattr(array.dtype, "name", array.dtype))
        for name, array in arrays.items()
    }


def whole(tensors: TensorSpecs) -> tuple[Piece, ...]:
    """Each tensor in one piece."""
    return tuple(
        Piece(tensor=name, shape=shape, dtype=dtype, start=0, rows=shape[0] if shape else 1)
        for name, (shape, dtype) in sorted(tensors.items())
    )


def plan_shards(tensors: TensorSpecs, workers: int) -> list[tuple[Piece, ...]]:
    """Each worker's pieces: about equally many bytes for all.

    Tensors larger than a worker's fair share are cut along their first axis; then the
    largest piece goes to whoever has least (Graham 1969).

    Args:
        tensors: what is to be written, in any order.
        workers: how many write, at least 1.
    """
    fair = sum(_bytes(*described) for described in tensors.values()) / workers
    pieces = [p for name in sorted(tensors) for p in _cut(name, *tensors[name], fair)]
    pieces.sort(key=lambda piece: (-_bytes_of(piece), piece.key))
    heap = [(0.0, worker) for worker in range(workers)]
    shares: list[list[Piece]] = [[] for _ in range(workers)]
    for piece in pieces:
        held, worker = heapq.heappop(heap)
        shares[worker].append(piece)
        heapq.heappush(heap, (held + _bytes_of(piece), worker))
    return [tuple(share) for share in shares]


def take(arrays: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, np.ndarray]:
    """The values of `pieces`, by key; no more is copied than the arrays copy on their own."""
    return {piece.key: _rows(arrays[piece.tensor], piece) for piece in pieces}


def _rows(array: Any, piece: Piece) -> np.ndarray:
    is_unsharded = not piece.shape or piece.rows == piece.shape[0]
    return np.asarray(array[...] if is_unsharded else array[piece.start : piece.start + piece.rows])


def _cut(name: str, shape: tuple[int, ...], dtype: str, fair: float) -> list[Piece]:
    rows = shape[0] if shape else 1
    size = _bytes(shape, dtype)
    parts = max(1, min(rows, math.ceil(size / fair))) if fair > 0 else 1
    bounds = [rows * i // parts for i in range(parts + 1)]
    return [
        Piece(tensor=name, shape=shape, dtype=dtype, start=start, rows=stop - start)
        for start, stop in itertools.pairwise(bounds)
    ]


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * _item_bytes(dtype)


def _bytes_of(piece: Piece) -> int:
    return piece.rows * math.prod(piece.shape[1:]) * _item_bytes(piece.dtype)


def _item_bytes(dtype: str) -> int:
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return 2  # bfloat16 and similar, while they are not registered
