"""The user's script or module, checked before any worker starts TensorFlow."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from phalanx.errors import ScriptError


def check_script(path: Path) -> None:
    """See that `path` is a file of valid Python.

    Raises:
        ScriptError: it is missing, not a file, unreadable or has a syntax error.
    """
    try:
        if not path.exists():
            raise ScriptError(
                f"There is no script {str(path)!r} (looked in {Path.cwd()}). Check the path; to "
                f"run a module by its name, use `phalanx run -m {path.stem}`."
            )
        if not path.is_file():
            raise ScriptError(f"{str(path)!r} is not a file. Name the Python script to run.")
        source = path.read_bytes()
    except OSError as error:
        raise ScriptError(f"Cannot read the script {str(path)!r}: {error.strerror}.") from error
    _check_syntax(source, path)


def check_module(
    name: str, search: Sequence[str] | None = None, *, is_imported: bool = False
) -> None:
    """See that `python -m name` would find valid Python, without running any of it.

    Args:
        name: the module's dotted name; a package runs its `__main__`.
        search: the directories to look in; None means the current one, then `sys.path`.
        is_imported: whether it is to be imported, where a package needs no `__main__`.

    Raises:
        ScriptError: there is no such module, or it has a syntax error.
    """
    path = _search_path(search)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ScriptError(
            f"-m needs a module's dotted name, such as package.train; found {name!r}. "
            "To run a file, leave -m out."
        )
    spec = _find(name, path) if is_imported else _find_main(name, path)
    if spec is None:
        raise ScriptError(
            f"There is no module {name!r} to run (looked in {path[0]} and sys.path). "
            "Check the name, or change into the directory that holds it."
        )
    if spec.origin is not None and spec.origin.endswith(".py"):
        _check_syntax(Path(spec.origin).read_bytes(), Path(spec.origin))


def script_source(target: str, *, as_module: bool) -> bytes | None:
    """The contents of the script; None where it has no source that can be read."""
    try:
        if not as_module:
            return Path(target).read_bytes()
        spec = _find_main(target, _search_path(None))
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin).read_bytes()
    except OSError:
        return None


def _search_path(search: Sequence[str] | None) -> list[str]:
    return list(search) if search is not None else [str(Path.cwd()), *sys.path]


def _find_main(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """What `python -m name` runs."""
    spec = _find(name, path)
    if spec is not None and spec.submodule_search_locations is not None:
        return _find(f"{name}.__main__", path)
    return spec


def _find(name: str, path: Sequence[str]) -> ModuleSpec | None:
    """Walk the packages by hand: `importlib.util.find_spec` would import the parents."""
    spec: ModuleSpec | None = None
    locations: Sequence[str] | None = path
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        if locations is None:
            return None
        # Editable installs have finders of their own beside that of `sys.path`.
        part, where = ".".join(parts[:depth]), list(locations)
        spec = next(filter(None, (each.find_spec(part, where) for each in sys.meta_path)), None)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
    return spec


def _check_syntax(source: bytes, path: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The worker will say them; once is enough.
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else str(path)
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise ScriptError(
            f"{where}: {type(error).__name__}: {error.msg}{line}\nNo worker was started."
        ) from error
    except ValueError as error:  # A null byte in the source.
        raise ScriptError(f"{path} is not Python: {error}. No worker was started.") from error
