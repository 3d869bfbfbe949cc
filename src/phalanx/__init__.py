"""Distributed training for Keras 3 on TensorFlow: the answer one device would have given.

Importing this package imports neither TensorFlow nor Keras; the names below load what
they need when they are first used.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.gradients.gathered_batch import all_gather_batch as all_gather_batch
    from phalanx.notebook.launch import launch as launch
    from phalanx.training.custom_loop import distribute_optimizer as distribute_optimizer
    from phalanx.training.custom_loop import observe_gradients as observe_gradients
    from phalanx.training.distributed_step import distribute_step as distribute_step
    from phalanx.training.distributed_step import sum_loss as sum_loss
    from phalanx.training.enable import disable as disable
    from phalanx.training.enable import enable as enable
    from phalanx.training.enable import is_enabled as is_enabled
    from phalanx.training.evaluate import evaluate as evaluate
    from phalanx.training.fit import fit as fit
    from phalanx.training.local_chief_first import local_chief_first as local_chief_first
    from phalanx.training.predict import predict as predict
    from phalanx.training.world import all_gather as all_gather
    from phalanx.training.world import all_reduce as all_reduce
    from phalanx.training.world import barrier as barrier
    from phalanx.training.world import broadcast as broadcast
    from phalanx.training.world import is_chief as is_chief
    from phalanx.training.world import local_rank as local_rank
    from phalanx.training.world import rank as rank
    from phalanx.training.world import world_size as world_size
    from phalanx.worker.strategy import strategy as strategy

__version__ = _version("phalanx")

_HOMES = {
    "disable": "phalanx.training.enable",
    "distribute_optimizer": "phalanx.training.custom_loop",
    "enable": "phalanx.training.enable",
    "evaluate": "phalanx.training.evaluate",
    "fit": "phalanx.training.fit",
    "observe_gradients": "phalanx.training.custom_loop",
    "is_enabled": "phalanx.training.enable",
    "launch": "phalanx.notebook.launch",
    "local_chief_first": "phalanx.training.local_chief_first",
    "predict": "phalanx.training.predict",
    "strategy": "phalanx.worker.strategy",
    "all_gather_batch": "phalanx.gradients.gathered_batch",
    "distribute_step": "phalanx.training.distributed_step",
    "sum_loss": "phalanx.training.distributed_step",
    **dict.fromkeys(
        (
            "all_gather",
            "all_reduce",
            "barrier",
            "broadcast",
            "is_chief",
            "local_rank",
            "rank",
            "world_size",
        ),
        "phalanx.training.world",
    ),
}

_MODULES = ("callbacks", "checkpoint", "clip", "data", "preemption", "schedules")

__all__ = [*sorted(_HOMES), *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"phalanx.{name}")
    if name not in _HOMES:
        is_callback = name in importlib.import_module("phalanx.callbacks").__all__
        hint = "; it is in phalanx.callbacks" if is_callback else ""
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def load_ipython_extension(ipython: Any) -> None:
    """Add `%%phalanx` to a notebook: IPython calls this for `%load_ext phalanx`."""
    importlib.import_module("phalanx.notebook.magic").load_ipython_extension(ipython)


def __dir__() -> list[str]:
    return __all__
