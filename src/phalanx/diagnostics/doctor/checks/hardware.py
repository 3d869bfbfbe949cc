"""The devices, CUDA and the resource limits of this machine."""

from __future__ import annotations

import os
import platform
import re
import resource
import shlex
import shutil
from collections.abc import Iterator

import psutil

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning

_FASTER = ("avx2", "fma", "avx512f")


def check_devices(here: MachineInfo) -> Iterator[Result]:
    """The CPU and the GPUs."""
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
        'pip install --force-reinstall "tensorflow[and-cuda]"; nvidia-smi shows the driver',
    )


_CUDA = "CUDA"
DRIVER = "nvidia-smi shows whether the driver is installed (Debian: apt-get install nvidia-driver)"


def check_cuda(here: MachineInfo) -> Iterator[Result]:
    """One result if all load; else one for the driver, and one for the missing libraries."""
    found = here.tensorflow.libraries
    if not found or not here.gpus:
        return
    broken = [library for library in found if library.error is not None]
    if not broken:
        yield ok(_CUDA, f"TensorFlow loads {', '.join(one.name for one in found)}")
        return
    for library in broken:
        if not library.requirement:
            yield warning(_CUDA, f"the driver does not load: {library.error}", DRIVER)
    wheels = [library for library in broken if library.requirement]
    if wheels:
        errors = "; ".join(f"{one.name}: {one.error}" for one in wheels)
        requested = " ".join(shlex.quote(one.requirement) for one in wheels)
        missing = all(one.error == "missing" for one in wheels)
        force = "" if missing else "--force-reinstall --no-deps "
        yield warning(
            _CUDA, f"TensorFlow does not load {errors}", f"pip install {force}{requested}"
        )


_OF_A_WORKER = 1 << 30  # TensorFlow and Keras loaded, a small model, its data
_FILES = 1024
_SHARED = 64 << 20


def check_resource_limits(here: MachineInfo) -> Iterator[Result]:
    """The limits of this process and its children."""
    yield memory(psutil.virtual_memory().available)
    yield open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    shared = here.root / "dev" / "shm"
    if shared.is_dir():
        yield shared_memory(shutil.disk_usage(shared).free)


def memory(available: int) -> Result:
    """Of this machine, in bytes."""
    what = f"{available / 2**30:.1f} GiB free"
    if available < _OF_A_WORKER:
        return failed("memory", f"{what}; a worker takes about 1 GiB", "end other processes")
    return ok("memory", f"{what}, for about {available // _OF_A_WORKER} workers")


def open_files(limit: int, most: int) -> Result:
    """How many a process may have, and may ask for."""
    if limit == resource.RLIM_INFINITY or limit >= _FILES:
        return ok("open files", "no limit" if limit == resource.RLIM_INFINITY else f"{limit}")
    wanted = _FILES if most == resource.RLIM_INFINITY else min(most, _FILES)
    return warning("open files", f"{limit} in a process", f"ulimit -n {wanted}")


def shared_memory(free: int) -> Result:
    """Free in /dev/shm, in bytes; containers have little."""
    what = f"{free / 2**20:.0f} MiB free in /dev/shm"
    if free >= _SHARED:
        return ok("shared memory", what)
    fix = "docker run --shm-size=1g (an emptyDir of medium Memory in Kubernetes)"
    return warning("shared memory", f"{what}; NCCL and PyDataset workers need more", fix)
