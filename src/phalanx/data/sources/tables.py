"""CSV and Parquet files, read whole by pyarrow: one sample a row."""

from __future__ import annotations

import decimal
import importlib
import io
import logging
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from phalanx.data.sources.arrays import ArraySource
from phalanx.data.sources.files import (
    expand_files,
    is_file_pattern,
    matching,
    read_whole,
    suffix_of,
)
from phalanx.errors import ConfigurationError, DataError, NoSamplesError


class TableRows:
    """The rows of one file; the first row has number `first` in messages."""

    def __init__(self, name: str, table: Any, first: int) -> None:
        """Number the rows in the order of the file."""
        self.name = name
        self.table = table
        self.numbers = np.arange(first, first + table.num_rows)

    def place(self, row: int) -> str:
        """The position of row `row` of the table in the file."""
        return f"row {self.numbers[row]} of {self.name}"


def whole_rows(rows: TableRows, wanted: list[str], *, skips: bool) -> np.ndarray:
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


def joined(name: str, files: list[TableRows], kept: list[np.ndarray]) -> np.ndarray:
    """A column over all files."""
    parts = [
        _numbers(name, _at(rows.table.column(name), which), rows.name)
        for rows, which in zip(files, kept, strict=True)
    ]
    parts = [part for part in parts if len(part)] or parts  # a CSV without rows has no types
    kinds = {part.dtype.kind for part in parts}
    if len(kinds - {"i", "f"}) > 0 and len(kinds) > 1:
        raise DataError(
            f"Asked for column {name!r}; found numbers in some files and text in others. Give the "
            "files one kind."
        )
    whole = np.concatenate(parts)
    return whole.astype(np.float32) if whole.dtype.kind == "f" else whole


def _at(column: Any, rows: np.ndarray) -> Any:
    """Only these rows: what lacks a value makes floats of whole numbers."""
    return column if len(rows) == len(column) else column.take(rows)


def _numbers(name: str, column: Any, file: str) -> np.ndarray:
    """A column as TensorFlow takes it: int64, float32 (also of decimals), bool, or text."""
    values: np.ndarray = column.to_numpy()
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
        if len({one.shape for one in values}) > 1:
            raise DataError(
                f"Asked for column {name!r} of {file}; found lists that differ in length. Give "
                "them one length, or take samples by an object with __getitem__ and Padding."
            )
        values = np.stack(list(values))
    if values.dtype == object:
        kinds = {type(value) for value in values.flat}
        if kinds == {decimal.Decimal}:
            values = values.astype(np.float64)
        elif not kinds <= {str, bytes}:
            raise _unusable(name, column, file)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.dtype.kind in "bOUS":
        return values
    raise _unusable(name, column, file)


def _unusable(name: str, column: Any, file: str) -> DataError:
    return DataError(
        f"Asked for column {name!r} of {file}; found values of type {column.type}, which a tensor "
        "does not hold. Make numbers or text of them, or name other columns=."
    )


def vector_of(features: dict[str, np.ndarray]) -> np.ndarray:
    """All columns as one float32 vector a row."""
    text = [name for name, values in features.items() if values.dtype.kind == "O"]
    if text:
        raise DataError(f"Asked for columns as one vector; found text in {text}. Name others.")
    return np.stack([values.astype(np.float32) for values in features.values()], axis=-1)


_log = logging.getLogger(__name__)
OnBadRow = Literal["raise", "skip"]


def csv(
    files: Any,
    *,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    as_vector: bool = False,
    delimiter: str = ",",
    on_error: OnBadRow = "raise",
) -> ArraySource:
    """Rows of CSV files whose first line names the columns.

    Args:
        files: a path, pattern, URL or a list of these; plain, or compressed as .gz or .bz2.
        label: the column that is to be learned; samples then are (columns, label).
        columns: those to read; all where None. `label` need not be among them.
        as_vector: whether the columns are one float32 vector, in their order, and not a dict.
        delimiter: what separates two values.
        on_error: "raise" to end with the first row that has the wrong number of values or lacks
            one, "skip" to leave such rows out and warn how many.

    Raises:
        DataError: no such file, no such column, no row, or a bad row.
        ConfigurationError: pyarrow is not installed.
    """
    reader = _pyarrow("csv")
    parse = {"delimiter": delimiter}

    def read(name: str) -> TableRows:
        return _read_csv(reader, name, parse, skips=on_error == "skip")

    tables = [read(name) for name in matching(files)]
    return _source(tables, label, columns, as_vector=as_vector, skips=on_error == "skip")


def parquet(
    files: Any,
    *,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    as_vector: bool = False,
    on_error: OnBadRow = "raise",
) -> ArraySource:
    """Rows of Parquet files; arguments and errors as for `csv`."""
    reader = _pyarrow("parquet")
    wanted = None if columns is None else [*dict.fromkeys([*columns, *([label] if label else [])])]

    def read(name: str) -> TableRows:
        try:
            table = reader.read_table(io.BytesIO(read_whole(name)), columns=wanted)
        except (ValueError, OSError) as error:
            raise DataError(
                f"Asked to read {name} as Parquet; found: {_line(error)}. Get the file again."
            ) from error
        return TableRows(name, table, first=0)

    tables = [read(name) for name in matching(files)]
    return _source(tables, label, columns, as_vector=as_vector, skips=on_error == "skip")


def from_tables(given: Any) -> ArraySource | None:
    """Of names that end in .csv (.csv.gz, .csv.bz2) or .parquet."""
    if not is_file_pattern(given):
        return None
    kind = suffix_of(expand_files(given))
    return csv(given) if kind == ".csv" else parquet(given) if kind == ".parquet" else None


def _pyarrow(part: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise ConfigurationError(
            f"Asked to read {part} files; pyarrow is not installed. Install phalanx[data]."
        ) from error


def _read_csv(reader: Any, name: str, parse: dict[str, Any], *, skips: bool) -> TableRows:
    bad: list[str] = []
    content = _decompressed(name)

    def mind(row: Any) -> str:
        found = f"{row.actual_columns} values for {row.expected_columns} columns: {row.text!r}"
        bad.append(f"row {row.number} of {name}: {found}" if row.number else found)
        return "skip" if skips else "error"

    options = reader.ParseOptions(**parse, invalid_row_handler=mind)
    try:
        # One thread: several lose the numbers of rows.
        read = reader.ReadOptions(use_threads=False)
        table = reader.read_csv(io.BytesIO(content), parse_options=options, read_options=read)
    except ValueError as error:
        found = bad[-1] if bad else f"{name}: {_line(error)}"
        raise DataError(
            f"Asked to read CSV; found, in {found}. Fix the row, or leave such rows out: "
            'phalanx.data.csv(..., on_error="skip").'
        ) from error
    if bad:
        _log.warning("Left out %d row(s) of %s; the first: %s.", len(bad), name, bad[0])
    # Rows after a skipped one keep their numbers in the file.
    rows = TableRows(name, table, first=1)
    dropped = [int(n) for text in bad for n in re.findall(r"^row (\d+) of", text)]
    every = np.arange(1, table.num_rows + len(dropped) + 1)
    rows.numbers = np.setdiff1d(every, np.array(dropped) - 1) if dropped else rows.numbers
    return rows


def _decompressed(name: str) -> bytes:
    content = read_whole(name)
    for ending, module in ((".gz", "gzip"), (".bz2", "bz2")):
        if name.endswith(ending):
            try:
                return bytes(importlib.import_module(module).decompress(content))
            except (OSError, EOFError) as error:
                raise DataError(
                    f"Asked to read the file {name}; it cannot be read: {error}."
                ) from error
    return content


def _source(
    files: list[TableRows],
    label: str | None,
    columns: Sequence[str] | None,
    *,
    as_vector: bool,
    skips: bool,
) -> ArraySource:
    named = list(columns or [c for c in files[0].table.column_names if c != label])
    wanted = [*dict.fromkeys([*named, *([label] if label else [])])]
    for rows in files:
        missing = [one for one in wanted if one not in rows.table.column_names]
        if missing:
            raise DataError(
                f"Asked for the columns {wanted}; found {rows.table.column_names} in {rows.name}, "
                f"without {missing}."
            )
    kept = [whole_rows(rows, wanted, skips=skips) for rows in files]
    arrays = {name: joined(name, files, kept) for name in wanted}
    ends = np.cumsum([len(rows) for rows in kept])
    if not ends[-1]:
        raise NoSamplesError(f"Asked for the rows of {files[0].name}; found none.")

    def where(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        return files[number].place(int(kept[number][row - ends[number] + len(kept[number])]))

    features: Any = {name: arrays[name] for name in named}
    if as_vector:
        features = vector_of(features)
    return ArraySource((features, arrays[label]) if label else features, where=where)


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
