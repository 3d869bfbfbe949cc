"""What callbacks remember: counters, best values, history.

A callback may say it itself, by `get_state()` and `set_state(state)`. Of every other, state is
what has changed since training began: EarlyStopping's `wait` has, its `patience` has not. So a
script may be restarted with other options, and Keras's callbacks need no list here.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from phalanx.checkpoint.serialization import NotSerializableError, decode, encode
from phalanx.keras_compat.callback_adapters import policy_of

_NOT_STATE = {"model", "_model", "params", "_params", "validation_data", "cluster", "local_metrics"}
_SET_UP_LATE = {"monitor_op", "min_delta"}
"""Keras's callbacks that monitor turn `min_delta` negative where they choose their `monitor_op`, at
the first epoch's end: those of a fresh process do so again."""
_Encoded = tuple[Any, dict[str, np.ndarray]]


class CallbackStates:
    """The memories of the callbacks of one training."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        """Note what the callbacks are like when training begins."""
        self._callbacks = _named(callbacks)
        self._before = {name: _attributes(c, name) for name, c in self._callbacks.items()}

    def read(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All states as JSON, and the arrays that they name."""
        document: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for name, callback in self._callbacks.items():
            if hasattr(callback, "get_state"):
                document[name] = encode(dict(callback.get_state()), arrays, f"{name}/state")
                continue
            before = self._before[name]
            changed: dict[str, Any] = {}
            for attribute, (value, own) in _attributes(callback, name).items():
                if attribute not in before or not _same((value, own), before[attribute]):
                    changed[attribute] = value
                    arrays |= own
            document[name] = changed
        return document, arrays

    def write(self, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what `read` gave; callbacks that were not there then stay as they are."""
        for name, callback in self._callbacks.items():
            state = document.get(name)
            if state is None:
                continue
            if hasattr(callback, "set_state"):
                callback.set_state(decode(state, arrays))
                continue
            for attribute, value in state.items():
                with suppress(KeyError):  # an array that only another worker had
                    setattr(callback, attribute, decode(value, arrays))


def _named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Callbacks that may have a state, by class and number."""
    counts: Counter[str] = Counter()
    named: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback)
        ours = kind.__module__.split(".")[0] == "phalanx"
        if ours and not hasattr(callback, "get_state"):
            continue  # displays and watches: what they remember is this process's
        named[f"{kind.__name__}/{counts[kind.__name__]}"] = callback
        counts[kind.__name__] += 1
    return named


def _attributes(callback: Any, name: str) -> dict[str, _Encoded]:
    """Every attribute that can be written down, with its arrays."""
    found: dict[str, _Encoded] = {}
    left_out = _NOT_STATE | policy_of(callback).of_process
    if hasattr(callback, "monitor_op"):
        left_out |= _SET_UP_LATE
    for attribute, value in vars(callback).items():
        if attribute in left_out:
            continue
        arrays: dict[str, np.ndarray] = {}
        with suppress(NotSerializableError):
            document = encode(value, arrays, f"{name}/{attribute}")
            found[attribute] = copy.deepcopy(document), arrays
    return found


def _same(one: _Encoded, other: _Encoded) -> bool:
    if repr(one[0]) != repr(other[0]) or one[1].keys() != other[1].keys():
        return False
    return all(np.array_equal(one[1][k], other[1][k], equal_nan=True) for k in one[1])
