"""What a step assigns to TensorFlow's variables.

Private names used: `ResourceVariable` and its base `BaseResourceVariable`, of
tensorflow/python/ops/resource_variable_ops.py, which have the methods of each variable of one
replica; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

METHODS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")
_DENSE = METHODS[:3]
_LIBRARIES = ("keras", "phalanx")


def assignments_seen(
    see: Callable[[Any], None], replace: Callable[[Any, Any], Any]
) -> Mapping[tuple[Any, str], Any]:
    """Replacements for the methods that assign to a variable, to be put on by `Patches`.

    Args:
        see: called with what is assigned, a tensor or `tf.IndexedSlices`, in a graph.
        replace: called with a variable and the dense value that a script assigns or adds to it, in
            a graph; gives the value to take in its place.
    """
    return {
        (kind, name): _seen(vars(kind)[name], see, replace if name in _DENSE else None)
        for kind in variable_classes()
        for name in METHODS
        if name in vars(kind)
    }


def variable_classes() -> tuple[Any, Any]:
    """The classes that have the methods: that of most variables, and the base of all."""
    module = importlib.import_module("tensorflow.python.ops.resource_variable_ops")
    return module.ResourceVariable, module.BaseResourceVariable


def _caller() -> str:
    """The package that assigns, be it through TensorFlow, as code does that AutoGraph converted."""
    frame: Any = sys._getframe(2)
    while frame.f_back is not None and _package(frame) == "tensorflow":
        frame = frame.f_back
    return _package(frame)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _seen(
    original: Callable[..., Any],
    see: Callable[[Any], None],
    replace: Callable[[Any, Any], Any] | None,
) -> Callable[..., Any]:
    @functools.wraps(original)
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            see(value)
            if replace is not None and _caller() not in _LIBRARIES:
                value = replace(self, value)
        return original(self, value, *args, **kwargs)

    return assign
