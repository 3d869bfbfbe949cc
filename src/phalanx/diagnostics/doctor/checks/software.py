"""Python, TensorFlow, Keras, Phalanx and Horovod: are they installed, and compatible?"""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement

from phalanx.diagnostics.doctor.machine import MachineInfo
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning

_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-intel")
_VERSIONS = "versions"


def check_versions(here: MachineInfo) -> Iterator[Result]:
    """Versions against what Phalanx asks for, and whether TensorFlow loads."""
    yield ok(_VERSIONS, f"Python {platform.python_version()}, phalanx {version('phalanx')}")
    yield _tensorflow(here)
    for line in here.requirements:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _package(requirement)
    backend = here.environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        yield failed(_VERSIONS, f"KERAS_BACKEND is {backend!r}", "export KERAS_BACKEND=tensorflow")


def _tensorflow(here: MachineInfo) -> Result:
    found = [(name, held) for name in _TENSORFLOWS if (held := installed(name))]
    if not found:
        return failed(_VERSIONS, "there is no TensorFlow", 'pip install "phalanx[cpu]"')
    if here.tensorflow.error is not None:
        names = " ".join(name for name, _ in found)
        return failed(
            _VERSIONS,
            f"{found[0][0]} {found[0][1]} does not load: {here.tensorflow.error}",
            f"pip install --force-reinstall --no-deps {names}",
        )
    wanted = next(Requirement(r) for r in here.requirements if r.startswith("tensorflow-cpu"))
    name, held = found[0]
    if not wanted.specifier.contains(held, prereleases=True):
        command = f"pip install {shlex.quote(f'{name}{wanted.specifier}')}"
        return failed(_VERSIONS, f"{name} is {held}, wanted {wanted.specifier}", command)
    if len(found) > 1:
        both = " ".join(name for name, _ in found)
        fix = f"pip uninstall -y {both} && pip install {name}=={held}"
        return warning(_VERSIONS, f"{both} {held} are installed over each other", fix)
    return ok(_VERSIONS, f"{name} {held}")


def _package(wanted: Requirement) -> Iterator[Result]:
    held = installed(wanted.name)
    if held is not None and wanted.specifier.contains(held, prereleases=True):
        if wanted.name == "keras":
            yield ok(_VERSIONS, f"keras {held}")
        return
    found = "missing" if held is None else held
    command = f"pip install {shlex.quote(f'{wanted.name}{wanted.specifier}')}"
    yield failed(_VERSIONS, f"{wanted.name} is {found}, wanted {wanted.specifier}", command)


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_horovod(here: MachineInfo) -> Iterator[Result]:
    """Horovod is optional: without it there is a warning and no error."""
    command = f"sh scripts/build_horovod.sh {sys.prefix}"
    components = here.tensorflow.horovod
    if here.tensorflow.error is not None:
        yield warning("Horovod", "unknown until TensorFlow loads")
    elif components == "missing":
        yield warning("Horovod", "not built, so there is no --strategy horovod", command)
    elif set(components.split(", ")) <= {"gloo", "mpi", "nccl"}:
        yield ok("Horovod", f"built, with {components}")
    else:
        yield warning("Horovod", components, f"HOROVOD_WHEELS=$(mktemp -d) {command}")
