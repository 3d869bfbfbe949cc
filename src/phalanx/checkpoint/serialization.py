"""Python values as JSON and arrays, and back: what is no such value is left out.

Lists, tuples, dictionaries, numbers, strings and arrays of any nesting come back as what they
were. Nothing is pickled, so reading a checkpoint runs no code of anybody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from phalanx.checkpoint.dtypes import is_storable

_KIND = "__kind__"


class NotSerializableError(TypeError):
    """A value is none of those that can be written down."""


def encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """The value as JSON; arrays go into `arrays`, under names that begin with `name`.

    Raises:
        NotSerializableError: it, or something in it, cannot be written down.
    """
    if isinstance(value, np.generic) and is_storable(value.dtype):  # np.float64 is a float too
        return {_KIND: "number", "dtype": value.dtype.name, "value": value.item()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) and is_storable(value.dtype):
        while name in arrays:  # of {1: a, "1": b}
            name += "'"
        arrays[name] = np.array(value)
        return {_KIND: "array", "name": name}
    if isinstance(value, (list, tuple)):
        items = [encode(each, arrays, f"{name}/{i}") for i, each in enumerate(value)]
        if type(value) is list:
            return items
        if type(value) is tuple:
            return {_KIND: "tuple", "items": items}
    if type(value) is dict:
        items = [
            [encode(k, arrays, f"{name}/key"), encode(v, arrays, f"{name}/{k}")]
            for k, v in value.items()
        ]
        return {_KIND: "dict", "items": items}
    raise NotSerializableError(f"{type(value).__name__} in {name}")


def decode(document: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `encode` was given.

    Raises:
        KeyError: an array is missing.
    """
    if isinstance(document, list):
        return [decode(each, arrays) for each in document]
    if not isinstance(document, dict):
        return document
    kind = document[_KIND]
    if kind == "number":
        return np.dtype(document["dtype"]).type(document["value"])
    if kind == "array":
        return np.array(arrays[document["name"]])
    items = [decode(each, arrays) for each in document["items"]]
    return tuple(items) if kind == "tuple" else dict(items)
