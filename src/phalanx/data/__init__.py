"""Input: sources to one global order, and from there to this worker's share of each batch.

    phalanx.data.pipeline(source, global_batch_size, ...)

The names below load what they need, TensorFlow among it, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.data.inspection.inspect import inspect as inspect
    from phalanx.data.pipelines.padding import Padding as Padding
    from phalanx.data.pipelines.pipeline import mix as mix
    from phalanx.data.pipelines.pipeline import pipeline as pipeline
    from phalanx.data.pipelines.pipeline import skipped as skipped
    from phalanx.data.sharding import shard as shard
    from phalanx.data.sources.array_records import array_records as array_records
    from phalanx.data.sources.idx import idx as idx
    from phalanx.data.sources.images import images as images
    from phalanx.data.sources.tables import csv as csv
    from phalanx.data.sources.tables import parquet as parquet
    from phalanx.data.sources.tfrecords.source import tfrecords as tfrecords
    from phalanx.data.sources.tfrecords.write import write_tfrecords as write_tfrecords

_HOMES = {
    "Padding": "phalanx.data.pipelines.padding",
    "array_records": "phalanx.data.sources.array_records",
    "csv": "phalanx.data.sources.tables",
    "idx": "phalanx.data.sources.idx",
    "inspect": "phalanx.data.inspection.inspect",
    "images": "phalanx.data.sources.images",
    "mix": "phalanx.data.pipelines.pipeline",
    "parquet": "phalanx.data.sources.tables",
    "pipeline": "phalanx.data.pipelines.pipeline",
    "shard": "phalanx.data.sharding",
    "skipped": "phalanx.data.pipelines.pipeline",
    "tfrecords": "phalanx.data.sources.tfrecords.source",
    "write_tfrecords": "phalanx.data.sources.tfrecords.write",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
