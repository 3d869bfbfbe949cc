"""Which batches have come, recorded from within the graph that takes them.

One execution takes its batch and trains on it in one graph, so Python cannot see which of the
two it waits for. So the graph notes, where a batch has come, its number, the time and the
dimensions that vary, in a resource of its own on the host; a read of that never waits. It costs
some microseconds next to the step, and no call of Python.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.distributed.topology import calls_python
from phalanx.gradients.comm_timer import now
from phalanx.monitoring.flight_format import DIMENSIONS
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.recorded_spans import SpanListener

_NUMBERS = itertools.count()
_PLACES = ("x", "y", "sample_weight")


@dataclass(frozen=True)
class _Note:
    """What is noted of batches that are equal.

    Only what differs between them is written at each step, as each operation there costs some ten
    microseconds: the time; the batch's number, where several come in one call; the dimensions that
    vary, where there are any.

    Attributes:
        signature: names, shapes and dtypes, `?` for what varies.
        number: its number in the execution, from 1; None where that is written.
        axes: how many dimensions are written.
    """

    signature: str
    number: int | None
    axes: int

    @property
    def size(self) -> int:
        """How many numbers are written."""
        return 1 + (self.number is None) + self.axes

    def listener(self, seconds: float, *rest: float) -> SpanListener:
        """What was written, as the recorder takes it."""
        number, sizes = (self.number, rest) if self.number is not None else (rest[0], rest[1:])
        return SpanListener(
            batches=int(number),
            when=round(seconds * 1e6) * 1000,
            signature=self.signature,
            dimensions=tuple(int(size) for size in sizes),
        )


class GraphBatchProbe:
    """Notes the arrivals of batches in graphs, and reads them outside."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._resources: dict[_Note, tf.Tensor] = {}

    @classmethod
    def for_recorder(cls, strategy: tf.distribute.Strategy) -> GraphBatchProbe | None:
        """One where a flight recorder runs and graphs run on this host, not on a TPU's."""
        if not flight.is_open or not calls_python(strategy):
            return None
        return cls()

    def note(self, data: Any, number: Any) -> None:
        """In a graph: the batch `data` has come, the execution's `number`-th, from 1."""
        named = list(_named(data))
        free = [
            (value, axis)
            for _, value in named
            if isinstance(value, tf.Tensor) and value.shape.rank is not None
            for axis, size in enumerate(value.shape)
            if size is None and axis > 0  # Few have any.
        ][:DIMENSIONS]
        note = _Note(
            signature=", ".join(f"{name} {_described(value)}" for name, value in named),
            number=number if isinstance(number, int) else None,
            axes=len(free),
        )
        sizes = [tf.shape(value)[axis] for value, axis in free]
        rest = [*([number] if note.number is None else []), *sizes]
        with tf.device("CPU:0"):
            with tf.control_dependencies(_tensors(data)):
                came = now()
            floats = [tf.cast(each, tf.float64) for each in rest]
            self._assign(note, tf.stack([came, *floats]) if floats else came)

    def last(self) -> SpanListener:
        """The last batch that came."""
        resources = list(self._resources.items())  # Another thread may be tracing.
        listener = [note.listener(*_read(resource)) for note, resource in resources]
        return max(listener, key=lambda each: each.when or 0, default=_NOTHING_YET)

    def _assign(self, note: _Note, value: tf.Tensor) -> None:
        if note not in self._resources:
            with tf.init_scope(), tf.device("CPU:0"):
                self._resources[note] = _resource(note.size)
        tf.raw_ops.AssignVariableOp(resource=self._resources[note], value=value)


_NOTHING_YET = SpanListener(batches=0, when=0, signature="", dimensions=())


def _resource(size: int) -> tf.Tensor:
    # Not tf.Variable: under a strategy that would be a variable of the replicas.
    resource = tf.raw_ops.VarHandleOp(
        dtype=tf.float64,
        shape=None,
        shared_name=f"phalanx-arrivals-{os.getpid()}-{next(_NUMBERS)}",
    )
    tf.raw_ops.AssignVariableOp(resource=resource, value=tf.zeros([size], tf.float64))
    return resource


def _read(resource: tf.Tensor) -> list[float]:
    numbers = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.float64).numpy()
    return [float(number) for number in numbers.ravel()]


class HostBatchProbe:
    """One batch that is there before the step begins."""

    def __init__(self, data: Any) -> None:
        """Report `data`, as `fit` takes it."""
        self._data = data

    def last(self) -> SpanListener:
        """That batch."""
        named = list(_named(self._data))
        shapes = [getattr(value, "shape", ()) for _, value in named]
        return SpanListener(
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
