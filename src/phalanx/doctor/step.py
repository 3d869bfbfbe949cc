"""What is wrong with a training step for a TPU: XLA is tried on it, on the CPU."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from phalanx.doctor.finding import Finding

_HOMES = [Path(module.__file__).parent for module in (tf, keras) if module.__file__]
_LIBRARIES = (*map(str, _HOMES), str(Path(__file__).parents[1]))
_OPERATIONS = {
    "PyFunc": ("a call back into Python", "Write it in TensorFlow's operations."),
    "EagerPyFunc": ("a call back into Python", "Write it in TensorFlow's operations."),
    "PyFuncStateless": ("a call back into Python", "Write it in TensorFlow's operations."),
    "PrintV2": ("printing", "Print in a callback instead."),
    "Unique": ("a result whose size depends on the values", "Use a fixed size, or a mask."),
    "UniqueV2": ("a result whose size depends on the values", "Use a fixed size, or a mask."),
    "Where": ("a result whose size depends on the values", "Use tf.where(mask, a, b)."),
    "WriteSummary": ("writing a summary", "Write it in a callback instead."),
}
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def findings_in_step(model: Any, spec: Any, size: int) -> list[Finding]:
    """Trace and compile the model's `train_step` for batches of `size`.

    Args:
        model: a compiled and built Keras model.
        spec: shapes and dtypes of a batch.
        size: samples in it.
    """
    batch = keras.tree.map_structure(lambda one: _of_size(one, size), spec)
    step = tf.function(model.train_step, jit_compile=True, autograph=False)
    try:
        traced = step.get_concrete_function(batch)
    except Exception as error:  # the user's code raises what it likes
        return [
            Finding(
                what=f"The step cannot be traced: {_first_line(error)}.",
                mend="See whether it looks at values in Python.",
                where=_own_line(_frames_of(error)),
            )
        ]
    found = _known(traced.graph)
    if found:
        return found
    try:
        zeros = keras.tree.map_structure(lambda one: tf.zeros(one.shape, one.dtype), batch)
        step.experimental_get_compiler_ir(zeros)(stage="hlo")
    except Exception as error:
        frames = [(file, int(line)) for file, line in _FRAME.findall(str(error))]
        return [
            Finding(
                what=f"XLA does not compile the step: {_first_line(error)}.",
                mend="Use another operation there.",
                where=_own_line(frames),
            )
        ]
    return []


def _known(graph: Any) -> list[Finding]:
    """Operations of the step that a TPU has not."""
    found: dict[tuple[str, str | None], Finding] = {}
    for operation in graph.get_operations():
        reason = _OPERATIONS.get(operation.type)
        if reason is None and any(t.dtype == tf.string for t in operation.outputs):
            reason = ("strings", "Turn them into numbers in the dataset.")
        if reason is None:
            continue
        where = _own_line([(f.filename, f.lineno) for f in operation.traceback])
        what, mend = reason
        found[operation.type, where] = Finding(
            what=f"{operation.type}: {what}, which a TPU has not.", mend=mend, where=where
        )
    return list(found.values())


def _of_size(spec: Any, size: int) -> Any:
    if not isinstance(spec, tf.TensorSpec):
        return spec
    return tf.TensorSpec([size, *spec.shape[1:]], spec.dtype)


def _frames_of(error: BaseException) -> list[tuple[str, int]]:
    trace = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno or 0) for frame in trace]


def _own_line(frames: Iterable[tuple[str, int]]) -> str | None:
    """The innermost frame that is neither TensorFlow's, Keras's nor ours."""
    own = [
        (file, line)
        for file, line in frames
        if not file.startswith((*_LIBRARIES, "<")) and "runpy" not in file
    ]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(".")[:200]
