"""Do something when a script imports a module, and not before: an import costs time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


class PostImportHook(MetaPathFinder):
    """Calls `action` once, right after the module `name` has been imported."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        """Watch for `name` from `watch` on."""
        self._name = name
        self._action = action

    def watch(self) -> None:
        """Act at once where the module is there already."""
        if self._name in sys.modules:
            self._action()
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more."""
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Python's own spec of the module, with a loader that acts in the end."""
        del path, target
        if fullname != self._name:
            return None
        self.stop()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Acting(spec.loader, self._action)
        return spec


class _Acting(Loader):
    def __init__(self, loader: Any, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._action()
