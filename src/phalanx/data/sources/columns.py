"""Columns of tables that were read from files, as arrays that TensorFlow takes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from phalanx.errors import DataError

_log = logging.getLogger(__name__)


class Rows:
    """The rows of one file; the first row has number `first` in messages."""

    def __init__(self, name: str, table: Any, first: int) -> None:
        """Number the rows as they stand in the file."""
        self.name = name
        self.table = table
        self.numbers = np.arange(first, first + table.num_rows)

    def place(self, row: int) -> str:
        """Where row `row` of the table stands in the file."""
        return f"row {self.numbers[row]} of {self.name}"


def whole_rows(rows: Rows, wanted: list[str], *, skips: bool) -> np.ndarray:
    """The rows that lack no value."""
    whole = np.ones(rows.table.num_rows, bool)
    for name in wanted:
        column = rows.table.column(name)
        if not column.null_count:
            continue
        lacking = np.asarray(column.is_null())
        if not skips:
            raise DataError(
                f"Asked for column {name!r}; found no value in "
                f"{rows.place(int(np.flatnonzero(lacking)[0]))}, and {column.null_count - 1} more "
                'such. Fill them in, or leave such rows out: on_error="skip".'
            )
        whole &= ~lacking
    if not whole.all():
        _log.warning("Left out %d row(s) of %s that lack a value.", (~whole).sum(), rows.name)
    return np.flatnonzero(whole)


def joined(name: str, files: list[Rows], kept: list[np.ndarray]) -> np.ndarray:
    """A column over all files."""
    parts = [
        _numbers(name, rows.table.column(name), rows.name)[which]
        for rows, which in zip(files, kept, strict=True)
    ]
    kinds = {part.dtype.kind for part in parts if len(part)}
    if len(kinds - {"i", "f"}) > 0 and len(kinds) > 1:
        raise DataError(
            f"Asked for column {name!r}; found numbers in some files and text in others. Give the "
            "files one kind."
        )
    whole = np.concatenate(parts)
    return whole.astype(np.float32) if whole.dtype.kind == "f" else whole


def _numbers(name: str, column: Any, file: str) -> np.ndarray:
    """A column as TensorFlow takes it: int64, float32, bool, or text as objects."""
    values: np.ndarray = column.to_numpy()
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
        if len({one.shape for one in values}) > 1:
            raise DataError(
                f"Asked for column {name!r} of {file}; found lists that differ in length. Give "
                "them one length, or take samples by an object with __getitem__ and Padding."
            )
        values = np.stack(list(values))
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.dtype.kind in "bOUS":
        return values
    raise DataError(
        f"Asked for column {name!r} of {file}; found values of type {column.type}, which a tensor "
        "does not hold. Make numbers or text of them, or name other columns=."
    )


def vector_of(features: dict[str, np.ndarray]) -> np.ndarray:
    """All columns as one float32 vector a row."""
    text = [name for name, values in features.items() if values.dtype.kind == "O"]
    if text:
        raise DataError(f"Asked for columns as one vector; found text in {text}. Name others.")
    return np.stack([values.astype(np.float32) for values in features.values()], axis=-1)
