"""Horovod itself, which is optional: loaded where it is asked for, or what is missing said."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from phalanx.errors import ConfigurationError


def load() -> Any:
    """The module `horovod.tensorflow`.

    Raises:
        ConfigurationError: it is not installed, or was built for another TensorFlow.
    """
    if not is_installed():
        raise ConfigurationError(
            "Asked for the horovod strategy; the Python package horovod is not installed. Build "
            "it for this TensorFlow by scripts/build_horovod.sh (docs/horovod.md), or use "
            "--strategy multiworker."
        )
    try:
        return importlib.import_module("horovod.tensorflow")
    except Exception as error:  # a library that does not load raises what it likes
        raise ConfigurationError(
            "Asked for the horovod strategy; horovod is installed but does not load "
            f"({type(error).__name__}: {error}). It must be built for the TensorFlow that is "
            "installed: build it again by scripts/build_horovod.sh."
        ) from error


def is_installed() -> bool:
    """Whether there is a Horovod; it is not loaded."""
    return importlib.util.find_spec("horovod") is not None
