"""Functions of TensorFlow's that a step calls become part of the step's own graph.

What a step computes is read in its graph: which losses are sums over rows, which rows of an
embedding are looked up, what metrics report, what a gradient is used for. A `tf.function` that the
step calls would hide it, and replicas of one process would share the variables that the first one's
trace captured. TensorFlow inlines such a call anyway when it optimizes the graph.

A function keeps a graph of its own where it is compiled by XLA, has an `input_signature`, or cannot
be converted by AutoGraph (`functools.partial`, source code that cannot be found).

Private names used: `_jit_compile` and `_autograph` of a function, and `TfMethodTarget`, which is in
the place of a method's instance; guarded by tests/unit/test_inlined_functions.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

FUNCTION: Any = type(tf.function(lambda: None))
"""The class of what `tf.function` makes."""

_UPSTREAM = ("tensorflow", "keras", "phalanx")


def inlined(applies: Callable[[], bool]) -> Callable[..., Any]:
    """A replacement for `__call__` of `tf.function`'s class.

    Args:
        applies: whether a step is being traced, where a graph calls a function.
    """
    original = FUNCTION.__call__

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or not applies() or (body := _body(self)) is None:
            return original(self, *args, **kwargs)
        args, kwargs = tf.nest.map_structure(_as_tensor, (args, kwargs))
        return body(*args, **kwargs)

    return call


def _body(function: Any) -> Callable[..., Any] | None:
    """The Python function that is traced for a `tf.function`; None where it is to stay one."""
    written, instance = _as_written(function.python_function)
    module = getattr(written, "__module__", None) or ""
    if (
        function.input_signature is not None
        or function._jit_compile
        or module.partition(".")[0] in _UPSTREAM
    ):
        return None
    if function._autograph:
        try:
            written = tf.autograph.to_graph(written)
        except Exception:
            return None
    return functools.partial(written, *instance)


def _as_written(function: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function as the script has it, and the instance to call it with, if it is a method."""
    wrapped: Any = getattr(function, "__wrapped__", None)
    target: Any = getattr(wrapped, "__self__", None)
    if type(target).__name__ == "TfMethodTarget":
        return wrapped.__func__, (target.target,)
    if inspect.ismethod(function):
        return function.__func__, (function.__self__,)
    if not inspect.isroutine(function):
        return type(function).__call__, (function,)
    return function, ()


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value
