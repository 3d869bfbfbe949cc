"""Start workers, watch them, stop them, and say why they failed. No TensorFlow in this room.

`phalanx.launch(function, workers=2)` calls `phalanx.notebook.launch.launch`, which runs a function
or a script on workers from a notebook.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """This package, as a function too.

    The import system sets the attribute `phalanx.launch` to this package as soon as anything in it
    is imported, so the public function of the same name has to be the package itself.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function()(*args, **kwargs)

    @property
    def __signature__(self) -> Signature:
        return signature(_function())


def _function() -> Any:
    # By name: the function uses the command line, which is above this package.
    return import_module("phalanx.notebook.launch").launch


sys.modules[__name__].__class__ = _CallableModule
