"""What is seen of one eager step: its layers in order, and the first operation that goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

OUTSIDE = "outside of any layer"
_CARRIERS = {"Identity", "IdentityN", "ReadVariableOp", "EagerConst", "AssignVariableOp"}

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, kw_only=True)
class Range:
    """What numbers a tensor holds: the least and the greatest that are finite, and the rest."""

    least: float
    greatest: float
    nonfinite: int
    size: int

    @classmethod
    def of(cls, array: np.ndarray) -> Range:
        """The range of an array; zeros where it holds no finite number."""
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        return cls(
            least=float(finite.min()) if finite.size else 0.0,
            greatest=float(finite.max()) if finite.size else 0.0,
            nonfinite=int(wide.size - finite.size),
            size=int(wide.size),
        )

    @property
    def largest(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.least), abs(self.greatest))


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """The first operation that made what is not finite of what was.

    Attributes:
        phase: forward or backward.
        layer: the path of the layer, or the name of the loss, that it belongs to.
        operation: its type in TensorFlow.
        inputs: the numbers it was given, one array a tensor.
        output: what it made of them.
    """

    phase: Phase
    layer: str
    operation: str
    inputs: tuple[np.ndarray, ...]
    output: np.ndarray


@dataclass(kw_only=True)
class OpCall:
    """One call of a layer or loss.

    Attributes:
        name: the layer's path, or the loss's name.
        inputs: what it was given.
        outputs: what it gave, for each tensor; empty until it ends.
        dtype: of the first output.
        nonfinite_rows: the rows of an output that are not finite; None where none is bad.
    """

    name: str
    inputs: list[Range]
    outputs: list[Range] = field(default_factory=list)
    dtype: str = ""
    nonfinite_rows: list[int] | None = None


class Trace:
    """Listens to one step; see `phalanx.keras_compat.eager_probes`.

    Attributes:
        calls: of layers and losses, in the order in which they ended: inner before outer.
        wrongs: the first operation that went wrong in each layer and phase.
    """

    def __init__(self) -> None:
        """Nothing has run yet."""
        self.calls: list[OpCall] = []
        self.wrongs: list[Wrong] = []
        self._open: list[OpCall] = []
        self._phase: Phase = "forward"
        self._behind = OUTSIDE

    def on_enter(self, name: str, inputs: list[Any]) -> None:
        """A layer's or loss's call begins."""
        self._open.append(OpCall(name=name, inputs=[Range.of(a) for a in _numbers(inputs)]))

    def on_leave(self, name: str, outputs: list[Any]) -> None:
        """It ends."""
        call, arrays = self._open.pop(), _numbers(outputs)
        call.name = name
        call.outputs = [Range.of(a) for a in arrays]
        call.dtype = arrays[0].dtype.name if arrays else ""
        bad = next((a for a in arrays if not np.isfinite(a).all()), None)
        call.nonfinite_rows = None if bad is None else nonfinite_rows(bad)
        self.calls.append(call)

    def on_gradient(self, name: str, side: str, gradient: Any) -> None:
        """The backward pass comes to a layer's output, or to its input."""
        del gradient
        self._phase, self._behind = "backward", name if side == "out" else OUTSIDE

    def on_operation(self, kind: str, inputs: Any, outputs: Any) -> None:
        """An operation has run."""
        if kind in _CARRIERS:
            return
        after = _numbers(outputs)
        bad = next((a for a in after if not np.isfinite(a).all()), None)
        if bad is None:
            return
        before = _numbers(inputs)
        if not all(np.isfinite(a).all() for a in before):
            return
        layer = self._where()
        if any(w.phase == self._phase and w.layer == layer for w in self.wrongs):
            return
        self.wrongs.append(
            Wrong(
                phase=self._phase,
                layer=layer,
                operation=kind,
                inputs=tuple(np.array(a) for a in before),
                output=np.array(bad),
            )
        )

    def _where(self) -> str:
        if self._phase == "backward":
            return self._behind
        return self._open[-1].name if self._open else OUTSIDE


def nonfinite_rows(array: np.ndarray) -> list[int]:
    """The rows, along the first axis, with a number that is not finite."""
    if array.ndim == 0:
        return []
    is_bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return [int(row) for row in np.flatnonzero(is_bad)]


def _numbers(tensors: Any) -> list[np.ndarray]:
    """The floating-point arrays among tensors."""
    found = []
    for tensor in tensors:
        dtype = getattr(tensor, "dtype", None)
        if dtype is not None and getattr(dtype, "is_floating", False):
            found.append(np.asarray(tensor.numpy()))
    return found
