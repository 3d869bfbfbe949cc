"""Checkpoints on disk: named arrays, whole or absent.

    phalanx.checkpoint.save(model, "checkpoints")
    phalanx.checkpoint.restore(model, "checkpoints")
    phalanx.checkpoint.list("checkpoints")
    phalanx.checkpoint.verify("checkpoints")

These four know models, and so live higher up; they are loaded when they are first named. What is
in this folder knows arrays only, and no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = "phalanx.training.checkpoint_api"

__all__ = ["list", "restore", "save", "verify"]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'phalanx.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME), name)
