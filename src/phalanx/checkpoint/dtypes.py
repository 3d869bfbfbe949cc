"""Numbers that NumPy has no type for (bfloat16, float8), as the bits they are."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # registers their names with NumPy
import numpy as np

__all__ = ["from_storage", "is_storable", "to_storage"]


def is_storable(dtype: np.dtype) -> bool:
    """Whether the files of a checkpoint hold its numbers, unlike a long double's or an object's."""
    is_known = dtype.kind in "biuf" or dtype.isbuiltin == 2  # which is one of ml_dtypes
    return is_known and dtype.itemsize <= 8


def to_storage(array: np.ndarray) -> np.ndarray:
    """The array, contiguous, in a dtype that safetensors takes from NumPy and gives back."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    return plain if plain.dtype.isbuiltin == 1 else plain.view(f"uint{8 * plain.dtype.itemsize}")


def from_storage(array: np.ndarray, dtype: str) -> np.ndarray:
    """What `to_storage` made of an array of `dtype`, as it was."""
    return array if array.dtype.name == dtype else array.view(np.dtype(dtype))
