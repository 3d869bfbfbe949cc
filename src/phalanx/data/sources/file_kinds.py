"""What a file holds, by its name; without TensorFlow, so that the command line can ask."""

from __future__ import annotations

import os
import re

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp")

KINDS = (".npy", ".npz", ".csv", ".parquet", ".tfrecord", ".array_record", ".arrayrecord", "IDX")
"""Those of single files, in the order in which messages name them."""

SCHEMA_FILE = "schema.json"
"""What `write_tfrecords` writes next to its files."""

_IDX = re.compile(r"idx[1-5]-")


def kind_of(name: str) -> str | None:
    """One of `KINDS`, or None for another file or one that is hidden."""
    base = os.path.basename(name).lower()
    plain = base.removesuffix(".gz").removesuffix(".bz2")
    ending = os.path.splitext(plain)[1]
    if base.startswith("."):
        return None
    if ".tfrecord" in base:  # train-00000-of-00004.tfrecord, train.tfrecord-00000-of-00004
        return ".tfrecord"
    if ending == ".idx" or _IDX.search(base):
        return "IDX"
    return ending if ending in KINDS else None
