"""What happens beside training; one callback a file.

A callback is imported when it is first named, for some bring libraries of their own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.callbacks.gradient_logger import GradientLogger as GradientLogger

_HOMES = {"GradientLogger": "phalanx.callbacks.gradient_logger"}

__all__ = ["GradientLogger"]


def __getattr__(name: str) -> Any:
    """Load a callback from its file on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx.callbacks' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
