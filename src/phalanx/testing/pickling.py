"""Functions and values on their way to a worker and back."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from phalanx.worker.code_pickler import CodePickler


def dump_call(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """`function` and its arguments as bytes; lambdas and closures included.

    What is defined in a test module goes by value: a worker may be unable to import
    the module (pytest's importlib mode), and need not import pytest to run it.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    clip_by_value = module is not None and _is_test_module(module.__name__)
    if not clip_by_value:
        return dump_value((function, tuple(args)))
    cloudpickle.register_pickle_by_value(module)
    try:
        return dump_value((function, tuple(args)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def dump_value(value: Any) -> bytes:
    """Any one value as bytes."""
    buffer = io.BytesIO()
    CodePickler(buffer).dump(value)
    return buffer.getvalue()


def _is_test_module(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("test_") or last.endswith("_test") or last == "conftest"
