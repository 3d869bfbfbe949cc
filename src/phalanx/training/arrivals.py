"""Which batches have come, told from within the graph that takes them.

One execution takes its batch and trains on it in one graph: from outside nobody sees which of the
two it waits for. So the graph notes, where a batch has come, its number, the time and the
dimensions that vary, in a resource of its own on the host; a read of that never waits. It costs
some microseconds beside the step, and no call of Python.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from phalanx.flight.form import DIMENSIONS
from phalanx.worker.flight import flight
from phalanx.worker.recorded import Told

_NUMBERS = itertools.count()
_PLACES = ("x", "y", "sample_weight")
_SIZE = 3 + DIMENSIONS
_NONE = -1.0


class GraphArrivals:
    """Notes the arrivals of batches in graphs, and reads them outside."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        # Not tf.Variable: under a strategy that would be a variable of the replicas.
        with tf.device("CPU:0"):
            self._resource = tf.raw_ops.VarHandleOp(
                dtype=tf.float64,
                shape=[_SIZE],
                shared_name=f"phalanx-arrivals-{os.getpid()}-{next(_NUMBERS)}",
            )
            self._assign(tf.zeros([_SIZE], tf.float64))
        self._signatures: list[str] = [""]

    @classmethod
    def for_recorder(cls, strategy: tf.distribute.Strategy) -> GraphArrivals | None:
        """One where a flight recorder runs and graphs run on this host, not on a TPU's."""
        if not flight.is_open or isinstance(strategy, tf.distribute.TPUStrategy):
            return None
        return cls()

    def note(self, data: Any, number: Any) -> None:
        """In a graph: the batch `data` has come, the execution's `number`-th, from 1."""
        named = list(_named(data))
        text = ", ".join(f"{name} {_described(value)}" for name, value in named)
        free = [
            (value, axis)
            for _, value in named
            if isinstance(value, tf.Tensor) and value.shape.rank is not None
            for axis, size in enumerate(value.shape)
            if size is None and axis > 0  # Few have any, and each costs the step some operations.
        ][:DIMENSIONS]
        with tf.device("CPU:0"), tf.control_dependencies(_tensors(data)):
            sizes = [tf.cast(tf.shape(value)[axis], tf.float64) for value, axis in free]
            sizes += [tf.constant(_NONE, tf.float64)] * (DIMENSIONS - len(sizes))
            signature = tf.constant(self._number(text), tf.float64)
            self._assign(tf.stack([tf.cast(number, tf.float64), tf.timestamp(), signature, *sizes]))

    def last(self) -> Told:
        """The last batch that came."""
        read = tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=tf.float64).numpy()
        count, seconds, signature, *sizes = read.tolist()
        return Told(
            batches=int(count),
            when=round(seconds * 1e6) * 1000,
            signature=self._signatures[int(signature)],
            dimensions=tuple(int(size) for size in sizes if size != _NONE),
        )

    def _assign(self, value: tf.Tensor) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._resource, value=value)

    def _number(self, text: str) -> int:
        if text not in self._signatures:
            self._signatures.append(text)
        return self._signatures.index(text)


class HostArrival:
    """One batch that is there before the step begins."""

    def __init__(self, data: Any) -> None:
        """Tell of `data`, as `fit` takes it."""
        self._data = data

    def last(self) -> Told:
        """That batch."""
        named = list(_named(self._data))
        shapes = [getattr(value, "shape", ()) for _, value in named]
        return Told(
            batches=1,
            when=None,
            signature=", ".join(
                f"{name} {value.dtype.name}[{', '.join('?' * len(shape))}]"
                for (name, value), shape in zip(named, shapes, strict=True)
            ),
            dimensions=tuple(size or 0 for shape in shapes for size in shape)[:DIMENSIONS],
        )


def _named(data: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch as `fit` takes it, by name."""
    if not isinstance(data, tuple) or len(data) > len(_PLACES):
        data = (data,)
    for place, value in zip(_PLACES, data, strict=False):
        yield from _within(place, value)


def _within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _within(f"{name}[{key!r}]", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _within(f"{name}[{index}]", inner)
    elif value is not None:
        yield name, value


def _described(value: Any) -> str:
    kind = "" if isinstance(value, tf.Tensor) else "sparse or ragged "
    shape = getattr(value, "shape", None)
    if shape is None or shape.rank is None:
        return f"{kind}{value.dtype.name}[...]"
    sizes = ["?" if size is None else str(size) for size in shape]
    if sizes[:1] == ["?"]:
        sizes[0] = "samples"
    return f"{kind}{value.dtype.name}[{', '.join(sizes)}]"


def _tensors(data: Any) -> list[tf.Tensor]:
    flat = tf.nest.flatten(data, expand_composites=True)
    return [value for value in flat if isinstance(value, tf.Tensor)]
