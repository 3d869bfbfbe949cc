"""Run the user's script as Python itself would."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class Target:
    """What to run: a script's path or a module's name, and its arguments."""

    name: str
    as_module: bool
    arguments: tuple[str, ...] = ()

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Target:
        """Read `-f script.py ...` or `-m module ...`, as the launcher writes it."""
        kind, name, *rest = arguments
        if kind not in ("-f", "-m"):
            raise ValueError(f"expected -f SCRIPT or -m MODULE, found {list(arguments)}")
        return cls(name=name, as_module=kind == "-m", arguments=tuple(rest))


def execute(target: Target) -> dict[str, object]:
    """Run it as `__main__`; its variables come back, so that they live to the very end."""
    sys.argv = [target.name, *target.arguments]
    if target.as_module:
        sys.path.insert(0, os.getcwd())
        return runpy.run_module(target.name, run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(target.name).resolve().parent))
    return _run_file(os.path.abspath(target.name))


def _run_file(path: str) -> dict[str, object]:
    """Run a file as `python FILE` does.

    `runpy.run_path` would set `sys.argv[0]` to the path, or else leave `__file__` relative, which
    Python has not done since 3.9: a script may change its directory.
    """
    loader = SourceFileLoader("__main__", path)
    code = loader.source_to_code(loader.get_data(path), path)
    main = ModuleType("__main__")
    main.__file__, main.__loader__, main.__package__ = path, loader, None
    sys.modules["__main__"] = main
    exec(code, main.__dict__)
    return main.__dict__
