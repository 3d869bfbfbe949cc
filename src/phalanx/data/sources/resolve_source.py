"""What `pipeline` was given, as a source: one line for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.data.sources.array_records import from_array_records
from phalanx.data.sources.arrays import from_arrays
from phalanx.data.sources.idx import from_idx
from phalanx.data.sources.images import from_directory
from phalanx.data.sources.numpy_files import from_numpy
from phalanx.data.sources.protocol import IndexedSource, StreamSource
from phalanx.data.sources.python import from_indexable
from phalanx.data.sources.tables import from_tables
from phalanx.data.sources.tfrecords.source import from_tfrecords
from phalanx.errors import DataError

Source = IndexedSource | StreamSource

Chooser = Callable[[Any], Source | None]
"""Makes a source of what it knows; None for everything else."""

KINDS: tuple[Chooser, ...] = (
    from_arrays,
    from_directory,
    from_idx,
    from_numpy,
    from_tables,
    from_array_records,
    from_tfrecords,
    from_indexable,
)
"""Asked in this order."""


def resolve_source(given: Any) -> Source:
    """The source behind what a user gave.

    Raises:
        DataError: no kind of source knows it, or there is no sample in it.
    """
    if isinstance(given, (IndexedSource, StreamSource)):
        return given
    for kind in KINDS:
        source = kind(given)
        if source is not None:
            return source
    raise DataError(
        f"Asked for a pipeline from a {type(given).__name__}: {_shortly(given)}. Give arrays, a "
        "directory of images by class, files (.npy, .npz, .csv, .parquet, .tfrecord, "
        ".array_record, IDX) or an object with __len__ and __getitem__."
    )


def _shortly(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:77]}..."
