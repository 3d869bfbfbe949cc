"""Memory, shared memory and open files: is there room for a few workers?"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator

import psutil

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning

_OF_A_WORKER = 1 << 30  # TensorFlow and Keras loaded, a small model, its data
_FILES = 1024
_SHARED = 64 << 20


def check(here: MachineInfo) -> Iterator[Result]:
    """What this process and its children may use."""
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
