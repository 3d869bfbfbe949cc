"""In a worker: calls the function, or runs the cell, that a notebook has sent.

`phalanx.launch` starts `phalanx run ... -m phalanx.worker.notebook_call CALL RESULT`. The kernel
reads RESULT, which the chief writes: see `phalanx.notebook`.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from phalanx.cluster.spec import WorkerSpec

MODULE = "phalanx.worker.notebook_call"
CELL = "<cell>"
"""The file name of a `%%phalanx` cell in tracebacks."""


@dataclass(frozen=True, kw_only=True)
class NotebookCall:
    """What a kernel sends to the workers.

    Attributes:
        pickled: the function, its positional and its keyword arguments; None for a cell.
        cell: the source of a cell; None for a function.
        arguments: what the cell finds in `sys.argv[1:]`.
        path: the kernel's `sys.path`.
        sources: the lines of each cell, by the file name that its code objects have here.
            AutoGraph, `inspect` and tracebacks read them.
        classes: the classes of the notebook, pickled, by name: Keras looks for them by their names
            when it loads a model.
        registered: those that are registered in Keras, by the registered name `package>name`.
    """

    pickled: bytes | None = None
    cell: str | None = None
    arguments: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    sources: Mapping[str, Sequence[str]]
    classes: Mapping[str, bytes]
    registered: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """What `fit` has recorded: a `keras.callbacks.History` without its model.

    Attributes:
        history: the values of each metric, one for each epoch.
        epoch: the epochs, from 0.
        params: `epochs`, `steps` and `verbose` of `fit`.
    """

    history: dict[str, list[Any]]
    epoch: list[int]
    params: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NotebookResult:
    """What comes back from the chief.

    Attributes:
        pickled: the returned value; None where it cannot be pickled.
        type: its type.
        error: why it cannot be pickled.
        has_keras: whether there is an object of Keras in it.
        registered: the classes that the function has registered in Keras, as in `NotebookCall`.
    """

    pickled: bytes | None
    type: str
    error: str = ""
    has_keras: bool = False
    registered: Mapping[str, bytes]


def main(arguments: Sequence[str]) -> None:
    """Call what is in the first file; as the chief, write what it returns to the second."""
    call = pickle.loads(Path(arguments[0]).read_bytes())
    sys.path += [place for place in call.path if place not in sys.path]
    for name, lines in call.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
    # Not this module's: a notebook's names are in a `__main__` of their own.
    notebook = sys.modules["__main__"] = ModuleType("__main__")
    _kept.append(notebook)
    sys.argv[:] = [CELL, *call.arguments]
    vars(notebook).update({name: pickle.loads(data) for name, data in call.classes.items()})
    register(call.registered)
    if call.cell is not None:
        exec(compile(call.cell, CELL, "exec", dont_inherit=True), vars(notebook))
        return
    with classes_of(notebook):
        function, args, kwargs = pickle.loads(call.pickled)
    value = function(*args, **kwargs)
    spec = WorkerSpec.from_environment(os.environ)
    if spec is None or spec.rank == 0:
        write_result(value, Path(arguments[1]))


_kept: list[ModuleType] = []
"""The notebook's names live to the end of the process, as those of a script do."""


def write_result(value: Any, path: Path) -> None:
    """Write the value whole or not at all, or why it cannot be pickled."""
    buffer = io.BytesIO()
    pickler = _ResultPickler(buffer)
    pickled, error = None, ""
    try:
        pickler.dump(value)
        pickled = buffer.getvalue()
    except Exception as raised:  # Any type may raise anything.
        error = f"{type(raised).__name__}: {raised}"
    result = NotebookResult(
        pickled=pickled,
        type=f"{type(value).__module__}.{type(value).__qualname__}",
        error=error,
        has_keras=pickler.has_keras,
        registered=pickled_each(registered_classes()),
    )
    partial = path.with_suffix(".part")
    partial.write_bytes(pickle.dumps(result))
    partial.replace(path)


class _ResultPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles a `History` without its model, and remembers whether Keras is needed to load it."""

    has_keras = False

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler.reducer_override`."""
        import keras

        if isinstance(value, keras.callbacks.History):
            return _history, (value.history, value.epoch, value.params)
        self.has_keras |= isinstance(
            value, (keras.Layer, keras.Optimizer, keras.Loss, keras.Metric)
        )
        return super().reducer_override(value)


def _history(
    history: dict[str, list[Any]], epoch: list[int], params: dict[str, Any]
) -> TrainingHistory:
    return TrainingHistory(history=history, epoch=epoch, params=params)


def registered_classes() -> dict[str, Any]:
    """What `__main__` has registered in Keras, by the registered name."""
    if "keras" not in sys.modules:
        return {}
    import keras

    return {
        name: value
        for name, value in keras.saving.get_custom_objects().items()
        if getattr(value, "__module__", None) == "__main__"
    }


def pickled_each(
    values: Mapping[str, Any], dumps: Callable[[Any], bytes] = cloudpickle.dumps
) -> dict[str, bytes]:
    """The values that can be pickled."""
    pickled: dict[str, bytes] = {}
    for name, value in values.items():
        try:
            pickled[name] = dumps(value)
        except Exception:  # Only a value that is used must travel, and then its error is shown.
            continue
    return pickled


def register(pickled: Mapping[str, bytes]) -> None:
    """Register classes and functions in Keras, but for names that are registered here already."""
    if not pickled:
        return
    import keras

    for name, data in pickled.items():
        package, _, own_name = name.rpartition(">")
        if name not in keras.saving.get_custom_objects():
            register_one = keras.saving.register_keras_serializable(package, own_name)
            register_one(pickle.loads(data))


def classes_of(module: ModuleType, *, has_keras: bool = False) -> AbstractContextManager[Any]:
    """A scope in which Keras finds the classes and functions of `module` by their names.

    Args:
        module: the notebook's.
        has_keras: whether Keras is needed, even if it is not imported here yet.
    """
    if not has_keras and "keras" not in sys.modules:
        return nullcontext()
    import keras

    own: dict[str, type | Callable[..., Any]] = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    }
    scope: AbstractContextManager[Any] = keras.saving.custom_object_scope(own)
    return scope


if __name__ == "__main__":
    # The classes must be those of the module that the kernel pickles, not of `__main__`.
    from phalanx.worker import notebook_call

    notebook_call.main(sys.argv[1:])
