"""When a batch cannot be made: find the sample, name it, or leave it out.

The fast way makes a batch in TensorFlow alone and knows nothing of names. Only where it fails
are the batch's samples read again, one by one, from Python.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.py_function import python_call
from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import DataError

_log = logging.getLogger(__name__)
_REPORT_EACH = 10
"""Skipped samples that are logged one by one; later ones are logged as their number doubles."""


class BadSamplePolicy:
    """Reads the samples of a batch that failed, one by one.

    Attributes:
        skipped: by number, why a sample was left out.
    """

    def __init__(self, source: IndexedSource, *, skips: bool) -> None:
        """Nothing has failed yet."""
        self.skipped: dict[int, str] = {}
        self._source = source
        self._skips = skips

    def samples(
        self, sample: Callable[..., Any], spec: Any, rows: tf.Tensor, marks: tf.Tensor
    ) -> tf.data.Dataset:
        """The samples of a batch as a dataset; traced.

        Args:
            sample: reads one, of its number and its mark; a TensorFlow function.
            spec: `tf.TensorSpec`s of what it gives.
            rows: which samples.
            marks: for each what its augmentation follows from.
        """
        specs = tf.nest.flatten(spec)
        good = python_call(lambda r, k: self._good(sample, specs, r, k), [rows, marks], tf.int64)
        pairs = tf.data.Dataset.from_tensor_slices((tf.ensure_shape(good, [None]), marks))
        return pairs.map(sample)

    def _good(self, sample: Any, specs: list[Any], rows: Any, marks: Any) -> np.ndarray:
        """For each row itself, or where that is left out the next that can be read."""
        good = [self._readable(sample, specs, int(r), k) for r, k in zip(rows, marks, strict=True)]
        return np.array(good, np.int64)

    def _readable(self, sample: Any, specs: list[Any], row: int, mark: Any) -> int:
        for offset in range(self._source.num_samples):
            other = (row + offset) % self._source.num_samples
            if other not in self.skipped:
                problem = _problem(sample, specs, other, mark)
                if problem is None:
                    return other
                self._mind(other, problem)
        raise DataError(
            f"Asked to leave out what cannot be read; found none of {self._source.num_samples} "
            "samples readable. The last reason: " + next(reversed(self.skipped.values()), "")
        )

    def _mind(self, row: int, problem: str) -> None:
        where = self._source.where(row)
        if not self._skips:
            raise DataError(
                f"Asked to read {where}; found: {problem}. Fix or remove it, or have such "
                'samples left out: pipeline(..., on_error="skip").'
            )
        self.skipped[row] = f"{where}: {problem}"
        count = len(self.skipped)
        if count <= _REPORT_EACH or count & (count - 1) == 0:
            _log.warning(
                "Left out %s: %s (%d so far); the next sample stands in.", where, problem, count
            )


def _problem(sample: Any, specs: list[Any], row: int, mark: Any) -> str | None:
    """Why sample `row` cannot be in a batch; None where it can."""
    try:
        values = tf.nest.flatten(sample(tf.constant(row, tf.int64), tf.constant(mark)))
    except Exception as error:  # the user's functions may raise anything
        return _first_line(error).removesuffix(".")
    for value, spec in zip(values, specs, strict=True):
        if not spec.shape.is_compatible_with(value.shape):
            return f"shape {tuple(value.shape)}, where others have {tuple(spec.shape)}"
    return None


def _first_line(error: Exception) -> str:
    """What went wrong, without where in TensorFlow's graph."""
    text = re.sub(r"\{\{.*?\}\}\s*", "", getattr(error, "message", None) or str(error))
    lines = [line for line in text.splitlines() if line.strip() and not _BY_THE_WAY.match(line)]
    text = lines[0].strip() if lines else ""
    return text if re.match(r"\w+(Error|Exception): ", text) else f"{type(error).__name__}: {text}"


_BY_THE_WAY = re.compile(r"\s|Graph execution error|Detected at node|<stack traces|Traceback")


_NAMED = re.compile(r"DataError: (.+?)(?:\n\s*\n|\nTraceback|\n\n|\Z)", re.DOTALL)


def offending_sample(error: BaseException) -> DataError | None:
    """The error about a sample that TensorFlow has wrapped into one of its own."""
    if not isinstance(error, tf.errors.OpError):
        return None
    found = _NAMED.search(error.message)
    return None if found is None else DataError(found[1])
