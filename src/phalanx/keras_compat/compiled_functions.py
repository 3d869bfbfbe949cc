"""`tf.function(jit_compile=True)` of a script, on several workers without GPUs.

XLA has no kernel for TensorFlow's collectives on CPUs, so a step of the script that applies an
optimizer would fail ("Collectives are not yet implemented for CPU devices when compiling with
XLA"). Such functions are not compiled by XLA there.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.keras_compat.patches import Patches
from phalanx.worker.shared_lines import is_scripts
from phalanx.worker.strategy import made_strategy

_log = logging.getLogger(__name__)


def _replacements() -> Mapping[tuple[Any, str], Any]:
    strategy = made_strategy()
    peers = isinstance(strategy, MultiWorkerStrategy) and strategy.num_replicas_in_sync > 1
    if not peers or tf.config.get_visible_devices("GPU"):
        return {}
    original = tf.function

    @functools.wraps(original)
    def function(*args: Any, **options: Any) -> Any:
        if options.get("jit_compile") and is_scripts(sys._getframe(1).f_code.co_filename):
            options["jit_compile"] = None
            _say_once()
        return original(*args, **options)

    return {(tf, "function"): function}


@functools.cache
def _say_once() -> None:
    _log.warning(
        "tf.function(jit_compile=True): XLA cannot compile an all-reduce for CPUs, so on several "
        "workers the functions of the script are not compiled by XLA."
    )


steps_without_xla = Patches(_replacements)
"""Enter it, and the script's functions are compiled by XLA only where an all-reduce can be."""
