"""Python called from a dataset's threads, which must have come to rest when Python ends.

A thread of TensorFlow's that asks for Python's lock while the interpreter is being taken down
never comes back, and the process that waits for it never ends. Data made ahead makes that
likely: so as Python ends, further calls are refused at once, and those under way awaited.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_QUIET = 0.2  # seconds without a call, after which buffers are full or have ended
_MOST = 10.0  # seconds for calls under way


class _Calls:
    """Counts the calls under way."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._started = 0
        self._over = False

    def begin(self) -> None:
        with self._changed:
            self._started += 1
            if self._over:
                raise RuntimeError("Python is ending: no more data is made.")
            self._running += 1

    def end(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Refuse what comes, wait for what runs, then until no calls are left."""
        until = time.monotonic() + _MOST
        with self._changed:
            if not self._started:
                return
            self._over = True
            self._changed.wait_for(lambda: self._running == 0, timeout=_MOST)
            started = -1
            while started != self._started and time.monotonic() < until:
                started = self._started
                self._changed.wait(_QUIET)


_calls = _Calls()
atexit.register(_calls.drain)


def python_call(
    function: Callable[..., Any], inputs: list[Any], dtypes: Any, *, stateful: bool = True
) -> Any:
    """`tf.numpy_function`, which refuses to begin once Python is ending."""

    def call(*arguments: Any) -> Any:
        _calls.begin()
        try:
            return function(*arguments)
        finally:
            _calls.end()

    return tf.numpy_function(call, inputs, dtypes, stateful=stateful)
