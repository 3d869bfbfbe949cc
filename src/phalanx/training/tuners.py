"""KerasTuner's searches under several workers: all run the same search, each in its own directory.

A tuner keeps what it has tried in files, which it removes, writes and reads again. In one directory
workers would remove and read the half of one another's. So the chief uses the directory that the
script names, and every other worker a temporary one, which begins as a copy of the chief's.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import inspect
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import fsspec

from phalanx.training.world import barrier, is_chief, world_size

_PACKAGE = "keras_tuner"


class TunersApart(MetaPathFinder):
    """While entered, tuners of several workers have directories of their own.

    It finds KerasTuner as Python does, and changes its `Tuner` when it has been imported.
    """

    def __init__(self) -> None:
        """Change nothing yet."""
        self._begin: Callable[..., None] | None = None

    def __enter__(self) -> None:
        """Change `Tuner`, now or when KerasTuner is imported."""
        if world_size() == 1:
            return
        if _PACKAGE in sys.modules:
            self._change(sys.modules[_PACKAGE])
        else:
            sys.meta_path.insert(0, self)

    def __exit__(self, *exc: object) -> None:
        """Leave `Tuner` as it was."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._begin is not None:
            sys.modules[_PACKAGE].Tuner.__init__ = self._begin
            self._begin = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """KerasTuner's spec, whose module is changed once it has run; None for other names."""
        del path, target
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            self._change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _change(self, package: ModuleType) -> None:
        begin = self._begin = package.Tuner.__init__

        @functools.wraps(begin)
        def begin_apart(tuner: Any, *args: Any, **options: Any) -> None:
            given = inspect.signature(begin).bind(tuner, *args, **options).arguments
            given.update(given.pop("kwargs", {}))
            if not is_chief():
                given["directory"] = _own_directory(
                    given.get("directory") or ".",
                    given.get("project_name") or "untitled_project",
                    is_copy=not given.get("overwrite", False),
                )
            barrier()  # The chief changes nothing before it has been copied.
            begin(**given)

        package.Tuner.__init__ = begin_apart


def _own_directory(directory: str, project: str, *, is_copy: bool) -> str:
    own = tempfile.mkdtemp(prefix="phalanx-tuner-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    files, chiefs = fsspec.core.url_to_fs(f"{str(directory).rstrip('/')}/{project}")
    if is_copy and files.isdir(chiefs):
        files.get(chiefs, own, recursive=True)
    return own
