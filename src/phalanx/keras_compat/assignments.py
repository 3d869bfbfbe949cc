"""What a step assigns to TensorFlow's variables.

Private name used: `ResourceVariable` of tensorflow/python/ops/resource_variable_ops.py, the class
of each variable of one replica; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

METHODS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")


def assignments_seen(see: Callable[[Any], None]) -> Mapping[tuple[Any, str], Any]:
    """Replacements for the methods that assign to a variable, to be put on by `Patches`.

    Args:
        see: called with what is assigned, a tensor or `tf.IndexedSlices`, in a graph.
    """
    kind = variable_class()
    return {(kind, name): _seen(getattr(kind, name), see) for name in METHODS}


def variable_class() -> Any:
    """The class that has the methods."""
    module = importlib.import_module("tensorflow.python.ops.resource_variable_ops")
    return module.ResourceVariable


def _seen(original: Callable[..., Any], see: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            see(value)
        return original(self, value, *args, **kwargs)

    return assign
