"""Host memory for what a worker writes, kept from one checkpoint to the next.

Fresh memory costs many times what copying into it does: the system hands it out page by page.
PyTorch keeps such buffers for its asynchronous checkpoints too (torch.distributed.checkpoint,
`cache_staged_state_dict`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import starmap

import numpy as np

from phalanx.checkpoint.manifest import Piece

_CHUNK = 16 << 20
"""Bytes that one thread copies at a time."""
_THREADS = min(4, os.cpu_count() or 1)


class Staging:
    """Buffers by the key of what they hold."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._held: dict[str, np.ndarray] = {}

    def reserve(self, pieces: Iterable[Piece]) -> None:
        """Have memory ready for `pieces`, so that the first copy is as fast as the others."""
        for piece in pieces:
            shape = (piece.rows, *piece.shape[1:]) if piece.shape else ()
            self._buffer(piece.key, shape, np.dtype(piece.dtype)).fill(0)

    def copy(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Copies of `values`, in memory that the next `copy` writes over."""
        buffers = {key: self._buffer(key, v.shape, v.dtype) for key, v in values.items()}
        chunks = [chunk for key, v in values.items() for chunk in _chunks(buffers[key], v)]
        if len(chunks) <= len(values):  # all small: threads would cost more than they give
            list(starmap(np.copyto, chunks))
        else:
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda chunk: np.copyto(*chunk), chunks))
        return buffers

    def _buffer(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        held = self._held.get(key)
        if held is None or held.shape != shape or held.dtype != dtype:
            held = self._held[key] = np.empty(shape, dtype)
        return held


def _chunks(to: np.ndarray, source: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parts of both that belong together, to be copied side by side."""
    if source.nbytes <= _CHUNK or not source.flags.c_contiguous:
        return [(to, source)]
    step = _CHUNK // source.dtype.itemsize
    flat_to, flat = to.reshape(-1), source.reshape(-1)
    return [(flat_to[i : i + step], flat[i : i + step]) for i in range(0, flat.size, step)]
