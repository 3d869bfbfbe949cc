"""Distributed training for Keras 3 on TensorFlow: the answer one device would have given.

Importing this package imports neither TensorFlow nor Keras; the names below load what
they need when they are first used.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.training.evaluate import evaluate as evaluate
    from phalanx.training.fit import fit as fit
    from phalanx.training.hand_loop import distribute_optimizer as distribute_optimizer
    from phalanx.training.hand_observation import observe_gradients as observe_gradients
    from phalanx.training.local_chief_first import local_chief_first as local_chief_first
    from phalanx.training.predict import predict as predict
    from phalanx.training.switch import disable as disable
    from phalanx.training.switch import enable as enable
    from phalanx.training.switch import is_enabled as is_enabled
    from phalanx.worker.strategy import strategy as strategy

__version__ = _version("phalanx")

_HOMES = {
    "disable": "phalanx.training.switch",
    "distribute_optimizer": "phalanx.training.hand_loop",
    "enable": "phalanx.training.switch",
    "evaluate": "phalanx.training.evaluate",
    "fit": "phalanx.training.fit",
    "observe_gradients": "phalanx.training.hand_observation",
    "is_enabled": "phalanx.training.switch",
    "local_chief_first": "phalanx.training.local_chief_first",
    "predict": "phalanx.training.predict",
    "strategy": "phalanx.worker.strategy",
}

_MODULES = ("callbacks", "checkpoint", "clip", "data", "schedules")

__all__ = [*sorted(_HOMES), *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"phalanx.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
