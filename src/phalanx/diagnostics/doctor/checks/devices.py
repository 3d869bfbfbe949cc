"""The CPU's features and the GPUs, against what TensorFlow can use."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning

_FASTER = ("avx2", "fma", "avx512f")


def check(here: MachineInfo) -> Iterator[Result]:
    """What there is to compute on."""
    yield _processor(here)
    yield _gpus(here)


def _processor(here: MachineInfo) -> Result:
    cores = len(os.sched_getaffinity(0))
    flags = _flags(here)
    if not flags:
        return ok("CPU", f"{cores} cores ({platform.machine()})")
    if "avx" not in flags:
        return failed(
            "CPU",
            "the CPU has no AVX, which TensorFlow's wheels need",
            "use another machine, or build TensorFlow from source",
        )
    missing = [name for name in _FASTER[:2] if name not in flags]
    if missing:
        what = f"{cores} cores, without {', '.join(missing)}: TensorFlow computes slowly"
        return warning("CPU", what)
    return ok("CPU", f"{cores} cores with {', '.join(n for n in _FASTER if n in flags)}")


def _flags(here: MachineInfo) -> set[str]:
    try:
        text = (here.root / "proc" / "cpuinfo").read_text()
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _gpus(here: MachineInfo) -> Result:
    there, seen = here.gpus, here.tensorflow.gpus
    if len(seen) >= len(there):
        return ok("GPUs", f"TensorFlow sees {len(seen)}") if seen else ok("GPUs", "none")
    what = f"this machine has {len(there)}, and TensorFlow sees {len(seen)}"
    if not here.tensorflow.has_cuda:
        return warning("GPUs", f"{what}: it was built for CPUs", 'pip install "phalanx[gpu]"')
    return warning(
        "GPUs",
        f"{what}: it does not load CUDA or cuDNN, or the driver is too old",
        'pip install --force-reinstall "tensorflow[and-cuda]"; nvidia-smi tells of the driver',
    )
