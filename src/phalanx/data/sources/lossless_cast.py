"""Casts that keep every value: samples follow the dtype of the first, and none changes silently."""

from __future__ import annotations

from typing import Any

import numpy as np

_WHOLE = "biu"
_TEXT = (str, bytes)


class LossyCastError(ValueError):
    """A value that a dtype cannot hold; the message names both."""


def cast_keeping_values(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """`array` as `dtype`, where that holds all of its values.

    Among floats, and from integers to floats, values may be rounded, as float32 rounds 0.1. All
    other values stay what they are: 4.0 and True become integers, 3.5 and 300 no uint8.

    Args:
        array: numbers, or text as objects.
        dtype: object for text.

    Raises:
        LossyCastError: a value does not fit.
    """
    if dtype.kind == "O" or array.dtype.kind == "O":
        return _text(array, dtype)
    if array.dtype == dtype or not array.size or np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype, copy=False)
    if dtype.kind in _WHOLE:
        fits = _fits_whole(array, dtype)
        if fits is None:
            raise LossyCastError(f"{array.dtype} values, which {dtype} does not hold")
    elif np.can_cast(array.dtype, dtype, "same_kind"):
        with np.errstate(over="ignore"):
            fits = np.isfinite(array.astype(dtype)) | ~np.isfinite(array)
    else:
        raise LossyCastError(f"{array.dtype} values, which {dtype} does not hold")
    if not fits.all():
        raise LossyCastError(f"{array[~fits].flat[0]} ({array.dtype}), which {dtype} does not hold")
    return array.astype(dtype)


def _fits_whole(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Which values the integers of `dtype`, or bool, hold; None where no value can be one."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.dtype.kind in _WHOLE:
        # NumPy compares an integer of its own with any of Python's, without overflow.
        return np.asarray((array >= low) & (array <= high))
    if array.dtype.kind == "f":
        wide = array.astype(np.float64)
        # As a float the greatest int64 is one more than it is, which int64 does not hold.
        return np.asarray((wide == np.floor(wide)) & (wide >= low) & (wide < high + 1.0))
    return None


def _text(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """`array`, where it holds text, and `dtype` too."""
    if array.dtype.kind != "O":
        if not array.size:
            return array.astype(object)
        raise LossyCastError(f"{array.flat[0]} ({array.dtype}), which is not text")
    wrong = [value for value in array.flat if not isinstance(value, _TEXT)]
    if wrong:
        raise LossyCastError(f"{wrong[0]!r}, which is neither a number nor text")
    if dtype.kind == "O":
        return array
    if not array.size:
        return array.astype(dtype)
    raise LossyCastError(f"{array.flat[0]!r}, which is no {dtype} number")
