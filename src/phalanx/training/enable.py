"""`phalanx.enable()`: Keras's own methods become Phalanx's, until `disable()`.

One switch, no pile of patches: `fit`, `evaluate`, `predict` and the `on_batch` methods of
`keras.Model`, the two seams that make optimizers and steps right, for custom training loops
too, one that lets a worker save on its own, and what keeps workers from writing one file at once
(KerasTuner's too).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from phalanx.keras_compat.cache_files import caches_by_worker
from phalanx.keras_compat.chief_writes import written_once
from phalanx.keras_compat.compiled_functions import steps_without_xla
from phalanx.keras_compat.downloads import downloads_take_turns
from phalanx.keras_compat.patches import Patches
from phalanx.keras_compat.script_collectives import collectives_are_compared
from phalanx.training.batch_methods import predict_on_batch, test_on_batch, train_on_batch
from phalanx.training.context import PATCHES
from phalanx.training.evaluate import evaluate
from phalanx.training.fit import fit
from phalanx.training.horovod_compat import HorovodScripts
from phalanx.training.parameter_server.ps_context import SERVER_PATCHES
from phalanx.training.predict import predict
from phalanx.training.tuners import TunersApart

_FUNCTIONS = (fit, evaluate, predict, train_on_batch, test_on_batch, predict_on_batch)


def _replacements() -> Mapping[tuple[Any, str], Any]:
    return {(keras.Model, function.__name__): function for function in _FUNCTIONS}


_methods = Patches(_replacements)
_ALL = (
    _methods,
    *PATCHES,
    *SERVER_PATCHES,
    HorovodScripts(),
    collectives_are_compared,
    written_once,
    downloads_take_turns,
    caches_by_worker,
    steps_without_xla,
    TunersApart(),
)


def enable() -> None:
    """Make `model.fit`, `evaluate`, `predict` and the `on_batch` methods Phalanx's.

    Every Keras optimizer then adds up its gradients over the replicas before it clips
    them, in custom training loops too. Calling it again changes nothing.
    """
    if not _methods.on:
        for patches in _ALL:
            patches.__enter__()


def disable() -> None:
    """Take `enable()` back: Keras's own methods, as if nothing had been."""
    if _methods.on:
        for patches in reversed(_ALL):
            patches.__exit__()


def is_enabled() -> bool:
    """Whether `enable()` is in force."""
    return _methods.on
