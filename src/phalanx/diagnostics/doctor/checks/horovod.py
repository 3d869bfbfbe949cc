"""Is Horovod built, and how is it?"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, ok, warning


def check(here: MachineInfo) -> Iterator[Result]:
    """Horovod is optional: without it there is a warning and no error."""
    command = f"sh scripts/build_horovod.sh {sys.prefix}"
    said = here.tensorflow.horovod
    if here.tensorflow.error is not None:
        yield warning("Horovod", "nobody can tell before TensorFlow loads")
    elif said == "missing":
        yield warning("Horovod", "not built, so there is no --strategy horovod", command)
    elif set(said.split(", ")) <= {"gloo", "mpi", "nccl"}:
        yield ok("Horovod", f"built, with {said}")
    else:
        yield warning("Horovod", said, f"HOROVOD_WHEELS=$(mktemp -d) {command}")
