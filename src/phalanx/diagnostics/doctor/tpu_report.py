"""Run a script up to its first `fit`, and see what a TPU would not take of it.

`phalanx doctor --target tpu train.py` starts this module in a process of its own. Nothing is
trained: the step is traced and compiled by XLA for this machine's CPU, for one batch size.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from phalanx.keras_compat.data_adapters import adapt
from phalanx.keras_compat.model_access import build
from phalanx.worker.run_script import Target, execute

_ENOUGH = 32


class _StepTraced(BaseException):
    """The script has come to its `fit`; no `except Exception` of its own stops this."""


def findings(
    model: Any, x: Any = None, y: Any = None, batch_size: int | None = None, **options: Any
) -> list[TpuFinding]:
    """What a TPU would not take of `model.fit(x, y, batch_size, ...)`."""
    adapter = adapt(
        x,
        y,
        sample_weight=options.get("sample_weight"),
        batch_size=batch_size,
        steps=options.get("steps_per_epoch"),
        class_weight=options.get("class_weight"),
    )
    spec = adapter.get_tf_dataset().element_spec
    found = findings_in_data(adapter, spec)
    if any(not isinstance(one, tf.TensorSpec) for one in keras.tree.flatten(spec)):
        return found
    build(model, spec, tf.distribute.get_strategy())
    return found + findings_in_step(model, spec, batch_size_of(adapter, spec) or _ENOUGH)


def main(arguments: list[str]) -> int:
    """Check the script; 0 where a TPU would take it, 1 where not, 2 where nothing is known."""
    found: list[list[TpuFinding]] = []

    def fit(
        model: Any, x: Any = None, y: Any = None, batch_size: int | None = None, **options: Any
    ) -> None:
        found.append(findings(model, x, y, batch_size, **options))
        raise _StepTraced

    keras.Model.fit = fit
    with suppress(_StepTraced):
        execute(Target.from_arguments(arguments))
    if not found:
        print(f"{arguments[1]} calls no fit, so there is no step to look at.")
        return 2
    for finding in found[0]:
        print(finding)
    if found[0]:
        return 1
    print(
        f"Found nothing in {arguments[1]} that a TPU would not take: XLA compiles its step. "
        "Only a run on a TPU proves it."
    )
    return 0


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


def findings_in_step(model: Any, spec: Any, size: int) -> list[TpuFinding]:
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
            TpuFinding(
                what=f"The step cannot be traced: {_first_line(error)}.",
                fix="See whether it looks at values in Python.",
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
            TpuFinding(
                what=f"XLA does not compile the step: {_first_line(error)}.",
                fix="Use another operation there.",
                where=_own_line(frames),
            )
        ]
    return []


def _known(graph: Any) -> list[TpuFinding]:
    """Operations of the step that a TPU has not."""
    found: dict[tuple[str, str | None], TpuFinding] = {}
    for operation in graph.get_operations():
        reason = _OPERATIONS.get(operation.type)
        if reason is None and any(t.dtype == tf.string for t in operation.outputs):
            reason = ("strings", "Turn them into numbers in the dataset.")
        if reason is None:
            continue
        where = _own_line([(f.filename, f.lineno) for f in operation.traceback])
        what, fix = reason
        found[operation.type, where] = TpuFinding(
            what=f"{operation.type}: {what}, which a TPU has not.", fix=fix, where=where
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


_SHAPES = (
    "A TPU compiles the step for one set of shapes, and again for each other: pad or cut to one."
)


def findings_in_data(adapter: Any, spec: Any) -> list[TpuFinding]:
    """What is wrong with the batches of one of Keras's data adapters.

    Args:
        adapter: what gives the batches.
        spec: their shapes and dtypes.
    """
    found = _partial_batches(adapter, spec)
    for path, one in keras.tree.flatten_with_path(spec):
        name = "x" if not path or path[0] == 0 else "y"
        if not isinstance(one, tf.TensorSpec):
            found.append(
                TpuFinding(what=f"The data's {name} is a {type(one).__name__}.", fix=_SHAPES)
            )
            continue
        if one.shape.rank is None or None in one.shape[1:]:
            found.append(
                TpuFinding(what=f"The data's {name} has the shape {one.shape}.", fix=_SHAPES)
            )
        if one.dtype == tf.string:
            found.append(
                TpuFinding(
                    what=f"The data's {name} are strings, which a TPU has not.",
                    fix="Turn them into numbers in the dataset: map(lookup).",
                )
            )
        if one.dtype == tf.float64:
            found.append(
                TpuFinding(
                    what=f"The data's {name} is float64, which a TPU has not.",
                    fix="Cast it to float32.",
                )
            )
    return found


def batch_size_of(adapter: Any, spec: Any) -> int | None:
    """Samples in a full batch; None if unknown."""
    first = keras.tree.flatten(spec)[0]
    static = first.shape[0] if isinstance(first, tf.TensorSpec) and first.shape.rank else None
    size = static or adapter.batch_size
    return int(size) if size else None


def _partial_batches(adapter: Any, spec: Any) -> list[TpuFinding]:
    size = batch_size_of(adapter, spec)
    last = adapter.partial_batch_size
    if last:
        return [
            TpuFinding(
                what=f"The last batch has {last} samples, the others have {size}.",
                fix="A TPU compiles the step again for it: use a batch size that divides the "
                "number of samples, or a dataset with drop_remainder=True.",
            )
        ]
    if isinstance(adapter.get_tf_dataset(), tf.data.Dataset) and size is None:
        return [
            TpuFinding(
                what="The dataset's batches may differ in size.",
                fix="Batch it with drop_remainder=True: a TPU compiles the step for one size.",
            )
        ]
    return []


@dataclass(frozen=True, kw_only=True)
class TpuFinding:
    """One thing that a TPU will not take.

    Attributes:
        what: what was found, with the value.
        fix: what to do.
        where: `file:line` of the user's code; None if unknown.
    """

    what: str
    fix: str
    where: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} {self.fix}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
