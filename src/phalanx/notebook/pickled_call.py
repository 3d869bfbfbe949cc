"""A function of a notebook and what it uses, as bytes for the workers."""

from __future__ import annotations

import functools
import io
import linecache
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NoReturn

import cloudpickle

from phalanx.errors import ConfigurationError
from phalanx.worker.code_pickler import CodePickler
from phalanx.worker.notebook_call import (
    NotebookCall,
    pickled_each,
    registered_classes,
)


def pickle_function(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> NotebookCall:
    """The call of `function` in a worker.

    Raises:
        ConfigurationError: something that the function uses cannot be pickled; names it.
    """
    copied = [name for name, value in _used(function, args, kwargs) if _is_keras_model(value)]
    if copied:
        warnings.warn(
            f"{_name(function)} uses the Keras model {copied[0]!r} of this process: each worker "
            "trains a copy of it, and the one here stays as it is. Create the model inside of the "
            "function, and return it.",
            stacklevel=4,
        )
    names = cell_names()
    dumps = functools.partial(_dumps, names=names)
    try:
        pickled = dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:  # Any type may raise anything.
        _refuse(function, args, kwargs, error)
    return NotebookCall(
        pickled=pickled,
        path=tuple(sys.path),
        sources={name: tuple(linecache.getlines(file)) for file, name in names.items()},
        classes=pickled_each(_notebook_classes(), dumps),
        registered=pickled_each(registered_classes(), dumps),
    )


class _CallPickler(CodePickler):
    """Keeps which cell a function is from, under the name that the user knows it by."""

    def __init__(self, buffer: io.BytesIO, names: Mapping[str, str]) -> None:
        super().__init__(buffer)
        self._names = names

    def file_of(self, code: CodeType) -> str:
        """The cell's name, or the file name of other code."""
        return self._names.get(code.co_filename, code.co_filename)


def _dumps(value: Any, names: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    _CallPickler(buffer, names).dump(value)
    return buffer.getvalue()


def cell_names() -> dict[str, str]:
    """The name of every cell that was run, such as `Cell In[3]`, by the file name of its code.

    IPython and Python's own prompt keep the lines in `linecache`, with no time of modification.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    names: dict[str, str] = {}
    for file, entry in linecache.cache.items():
        if len(entry) == 4 and entry[1] is None:
            label = None if shell is None else shell.compile.format_code_name(file)
            names[file] = file if label is None else " ".join(label)
    return names


def _notebook_classes() -> dict[str, type]:
    """The classes that `__main__` defines, by their names."""
    return {
        name: value
        for name, value in list(vars(sys.modules["__main__"]).items())
        if isinstance(value, type) and value.__module__ == "__main__"
    }


def _refuse(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> NoReturn:
    """Name the first value which cannot be pickled."""
    why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for name, value in _used(function, args, kwargs):
        if isinstance(value, FunctionType) and value.__module__ == "__main__":
            continue  # The values that it uses follow.
        try:
            cloudpickle.dumps(value)
        except Exception as raised:  # As above.
            why = f"{type(raised).__name__}: {str(raised).partition(chr(10))[0]}"
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise ConfigurationError(
                f"{_name(function)} uses {name!r}, a {kind} of this process, which cannot be sent "
                f"to the workers ({why}). Create it inside of the function."
            ) from error
    raise ConfigurationError(
        f"{_name(function)} cannot be sent to the workers ({why}). Create inside of the function "
        "what it uses, and pass only values that can be pickled."
    ) from error


def _used(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The values that go along, with their names: arguments, globals, closures, defaults."""
    for index, value in enumerate(args):
        yield f"args[{index}]", value
    yield from kwargs.items()
    yield from _captured(function, set())


def _captured(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        for name, value in _used(function.func, function.args, function.keywords):
            yield name, value
        return
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    known = function.__globals__
    found = {name: known[name] for name in _names(function.__code__) if name in known}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # It is not set yet.
            continue
    found |= {f"default {index}": value for index, value in enumerate(function.__defaults__ or ())}
    found |= function.__kwdefaults__ or {}
    for name, value in found.items():
        if getattr(value, "__module__", None) == "__main__":
            yield from _captured(value, seen)
        yield name, value


def _names(code: CodeType) -> list[str]:
    """The names that a function and the functions in it look up."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [*code.co_names, *(name for each in inner for name in _names(each))]


def _is_keras_model(value: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)
