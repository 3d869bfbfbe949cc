"""Shapes in a step that name the size of the global batch as a constant.

`keras.random.normal((BATCH, 16))` has one row for each sample on one device. A replica holds fewer
samples, so its draw needs as many rows as it holds. Where the script itself asks for a shape whose
leading dimension is the global batch size, that dimension becomes the replica's part of it:
`random_draws` then draws the replica's rows. `tf.ones((BATCH, 1))` and similar, the labels of such
rows, follow once a draw of the step has been divided.

The size alone does not decide. These shapes stay unchanged: what a layer, an initializer or an
optimizer of Keras asks for, what a `build` or `__init__` of the script does, a shape that the call
takes from a tensor (`w.shape`), and the shape of one of the model's variables, such as noise for a
kernel, unless the call has the word "batch".

The functions of `tf` and `tf.random` are replaced, through which Keras draws and fills too. Those
below them would still be given the constant, and note it as the static shape of the result.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.keras_compat.random_draws import ReplicaRows

_DRAWS = (
    "normal",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
)
_FILLS = ("fill", "ones", "zeros")

_KERAS = Path(inspect.getfile(keras)).parent
_PASSES_ON = tuple(
    str(path)
    for path in (
        *(_KERAS / "src" / name for name in ("backend", "ops", "random", "utils")),
        Path(inspect.getfile(tf)).parent,
        Path(__file__).parent,
    )
)
_OF_A_TENSOR = re.compile(r"\.shape\b|\bshape\(")
_MAKES_VARIABLES = ("__init__", "build", "tf____init__", "tf__build")


@dataclass
class BatchSizeInShapes:
    """What decides, in one trace of a step, which constant shapes name the batch.

    Attributes:
        batch_size: samples in every global batch but the last of a pass; None where unknown.
        replicas: how many share a batch.
        shapes_of_variables: gives the shapes of the model's variables.
        requested: the leading dimensions of all constant shapes that the script has asked for.
        is_divided: whether the trace has divided a draw.
    """

    batch_size: int | None
    replicas: int
    shapes_of_variables: Callable[[], set[tuple[int, ...]]] = set
    requested: set[int] = field(default_factory=set)
    is_divided: bool = False

    def names_batch(self, shape: Any, *, is_draw: bool) -> bool:
        """Whether the script asks for `shape` with the global batch size as a constant."""
        sizes = _constants(shape)
        if not sizes or sizes[0] is None or sizes[0] < 2:
            return False
        if (frame := _asked_by_script()) is None:
            return False
        self.requested.add(sizes[0])
        if sizes[0] != self.batch_size or not (is_draw or self.is_divided):
            return False
        text = _text_of_call(frame)
        if _OF_A_TENSOR.search(text):
            return False
        if is_draw and "batch" not in text.lower() and sizes in self.shapes_of_variables():
            return False
        self.is_divided = True
        return True


FindConstants = Callable[[], tuple[ReplicaRows, BatchSizeInShapes] | None]
"""The rows of the replica and the constants of its trace; None outside of a step."""


def constant_shapes_by_rows(find: FindConstants) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that constant shapes are those of the rows that `find` gives."""
    draws = {(tf.random, n): _by_rows(getattr(tf.random, n), find, is_draw=True) for n in _DRAWS}
    return draws | {(tf, n): _by_rows(getattr(tf, n), find, is_draw=False) for n in _FILLS}


def _by_rows(original: Callable[..., Any], find: FindConstants, *, is_draw: bool) -> Any:
    name = next(iter(inspect.signature(original).parameters))  # shape, or dims

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(original)
    def requested(*args: Any, **options: Any) -> Any:
        if (found := find()) is not None and (args or name in options):
            rows, constants = found
            shape = args[0] if args else options[name]
            if constants.names_batch(shape, is_draw=is_draw):
                shape = (_part_of(int(shape[0]), rows, constants.replicas), *list(shape)[1:])
                if args:
                    args = (shape, *args[1:])
                else:
                    options[name] = shape
        return original(*args, **options)

    return requested


def _part_of(size: int, rows: ReplicaRows, replicas: int) -> Any:
    """The replica's part of `size` rows; in a smaller last batch as near to it as there is."""
    static = rows.static_count
    if static is not None and size // replicas <= static <= math.ceil(size / replicas):
        return static  # of a batch of `size` rows
    per_row = size // rows.total
    nearest = tf.maximum(size * rows.own_rows // rows.total, 1)
    return tf.where(tf.equal(per_row * rows.total, size), per_row * rows.own_rows, nearest)


def _constants(shape: Any) -> tuple[int | None, ...]:
    """The sizes of a shape that is given in Python, None for those that a tensor gives."""
    if not isinstance(shape, (tuple, list)):  # a TensorShape is that of a tensor
        return ()
    return tuple(int(n) if isinstance(n, (int, np.integer)) else None for n in shape)


def _asked_by_script() -> FrameType | None:
    """Where the script makes the call, through functions that only pass the shape on."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PASSES_ON):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(str(_KERAS)):
        return None
    return None if frame.f_code.co_name in _MAKES_VARIABLES else frame


def _text_of_call(frame: FrameType) -> str:
    """The text of the call that is under way in a frame; "" without a source."""
    at = inspect.getframeinfo(frame, context=0).positions
    if at is None or at.lineno is None or at.end_lineno is None:
        return ""
    numbers = range(at.lineno, at.end_lineno + 1)
    lines = [linecache.getline(frame.f_code.co_filename, n).encode() for n in numbers]
    lines[-1] = lines[-1][: at.end_col_offset]
    lines[0] = lines[0][at.col_offset :]
    return b"".join(lines).decode(errors="replace")
