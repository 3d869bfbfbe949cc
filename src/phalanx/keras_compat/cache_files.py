"""`tf.data.Dataset.cache(filename)` by several workers: each writes a file of its own.

TensorFlow locks the file while a pass writes it, and a second process that writes it fails. A file
that is complete is only read: by all workers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec
from phalanx.keras_compat.patches import Patches


def _replacements() -> Mapping[tuple[Any, str], Any]:
    return {(tf.data.Dataset, "cache"): _in_own_file(tf.data.Dataset.cache)}


def _in_own_file(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cache(self: Any, filename: Any = "", name: Any = None) -> Any:
        spec = WorkerSpec.from_environment(os.environ)
        is_named = isinstance(filename, str) and filename
        if spec is None or spec.rank == 0 or not is_named or _is_complete(filename):
            return original(self, filename, name)
        return original(self, f"{filename}-worker-{spec.rank}", name)

    return cache


def _is_complete(filename: str) -> bool:
    return bool(tf.io.gfile.exists(f"{filename}.index"))


caches_by_worker = Patches(_replacements)
"""Enter it, and each worker but the first caches in a file of its own; leave it, and all in one."""
