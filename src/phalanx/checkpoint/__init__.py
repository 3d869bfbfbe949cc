"""Checkpoints on disk: named arrays, complete or absent.

    phalanx.checkpoint.save(model, "checkpoints")
    phalanx.checkpoint.restore(model, "checkpoints")
    phalanx.checkpoint.list("checkpoints")
    phalanx.checkpoint.verify("checkpoints")

These four know models; they are in `training/checkpoint_api.py` and are loaded on first use.
`StorageDir`, `ShardWriter`, `Snapshot` and `latest` store named arrays without TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(("list", "restore", "save", "verify"), "phalanx.training.checkpoint_api"),
    "ShardWriter": "phalanx.checkpoint.writer",
    "Snapshot": "phalanx.checkpoint.writer",
    "StorageDir": "phalanx.checkpoint.storage_dir",
    "latest": "phalanx.checkpoint.reader",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
