"""What a step assigns to TensorFlow's variables.

Private names used: `ResourceVariable` and its base `BaseResourceVariable`, of
tensorflow/python/ops/resource_variable_ops.py, which have the methods of each variable of one
replica; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

_DENSE = ("assign", "assign_add", "assign_sub")
_SCATTER = tuple(f"scatter_{way}" for way in ("add", "sub", "update", "max", "min", "mul", "div"))
_SCATTER_ND = tuple(f"scatter_nd_{way}" for way in ("add", "sub", "update", "max", "min"))
METHODS = (*_DENSE, *_SCATTER, *_SCATTER_ND)
_LIBRARIES = ("keras", "phalanx")


def assignments_seen(
    see: Callable[[Any], None], replace: Callable[[Any, Sequence[Any]], Sequence[Any]]
) -> Mapping[tuple[Any, str], Any]:
    """Replacements for the methods that assign to a variable, to be put on by `Patches`.

    Args:
        see: called with what is assigned, a tensor or `tf.IndexedSlices`, in a graph.
        replace: called with a variable and what a script assigns to it, in a graph: a value, or
            indices and the values for them. It gives those to take in their place.
    """
    return {
        (kind, name): _seen(vars(kind)[name], see, replace, by_indices=name in _SCATTER_ND)
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
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__") == __name__ or _package(frame) == "tensorflow"
    ):
        frame = frame.f_back
    return _package(frame)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _seen(
    original: Callable[..., Any],
    see: Callable[[Any], None],
    replace: Callable[[Any, Sequence[Any]], Sequence[Any]],
    *,
    by_indices: bool,
) -> Callable[..., Any]:
    def replaced(variable: Any, value: Any) -> Any:
        see(value)
        if _caller() in _LIBRARIES:
            return value
        if isinstance(value, tf.IndexedSlices):
            indices, values = replace(variable, (value.indices, value.values))
            return tf.IndexedSlices(values, indices, value.dense_shape)
        return replace(variable, (value,))[0]

    @functools.wraps(original)
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            value = replaced(self, value)
        return original(self, value, *args, **kwargs)

    @functools.wraps(original)
    def assign_nd(self: Any, indices: Any, updates: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            updates = tf.convert_to_tensor(updates, self.dtype)
            together = replaced(self, tf.IndexedSlices(updates, tf.convert_to_tensor(indices)))
            indices, updates = together.indices, together.values
        return original(self, indices, updates, *args, **kwargs)

    return assign_nd if by_indices else assign
