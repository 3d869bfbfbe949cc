"""CUDA, cuDNN and the driver: which of them TensorFlow can load, and the line that fixes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, ok, warning

_CHECK = "CUDA"
DRIVER = "nvidia-smi tells whether the driver is there (Debian: apt-get install nvidia-driver)"


def check(here: MachineInfo) -> Iterator[Result]:
    """One line where all load; else one for the driver, and one for what is missing."""
    found = here.tensorflow.libraries
    if not found or not here.gpus:
        return
    broken = [library for library in found if library.error is not None]
    if not broken:
        yield ok(_CHECK, f"TensorFlow loads {', '.join(one.name for one in found)}")
        return
    for library in broken:
        if not library.requirement:
            yield warning(_CHECK, f"the driver does not load: {library.error}", DRIVER)
    wheels = [library for library in broken if library.requirement]
    if wheels:
        told = "; ".join(f"{one.name}: {one.error}" for one in wheels)
        asked = " ".join(shlex.quote(one.requirement) for one in wheels)
        missing = all(one.error == "missing" for one in wheels)
        force = "" if missing else "--force-reinstall --no-deps "
        yield warning(_CHECK, f"TensorFlow does not load {told}", f"pip install {force}{asked}")
