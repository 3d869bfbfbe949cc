"""What TensorFlow and Horovod report of this machine, asked in a process of its own."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

_EXTRA = 'extra == "and-cuda"'
_WHEEL = re.compile(r"nvidia-(?P<part>[a-z-]+?)-cu\d+")
_LIBRARIES = {
    "cublas": "cublas",
    "cuda-cupti": "cupti",
    "cuda-nvrtc": "nvrtc",
    "cuda-runtime": "cudart",
    "cudnn": "cudnn",
    "cufft": "cufft",
    "curand": "curand",
    "cusolver": "cusolver",
    "cusparse": "cusparse",
    "nccl": "nccl",
    "nvjitlink": "nvJitLink",
}
"""By the part of the wheel's name between "nvidia-" and "-cu12"."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One library.

    Attributes:
        name: as the linker calls it: "cudnn"; "cuda" is the driver.
        requirement: the wheel that contains it, as TensorFlow requires it; "" for the driver.
        error: why it does not load; None if it does.
    """

    name: str
    requirement: str
    error: str | None = None

    @classmethod
    def from_fields(cls, fields: Mapping[str, str | None]) -> Library:
        """From JSON."""
        return cls(**fields)  # type: ignore[arg-type]


def libraries() -> Iterator[Library]:
    """All that TensorFlow needs for GPUs, and the driver."""
    requested_by: Iterable[str] = ()
    with suppress(PackageNotFoundError):  # a build of one's own may have another name
        requested_by = requires("tensorflow") or ()
    for requirement in wanted(requested_by):
        match = _WHEEL.fullmatch(requirement.name)
        name = _LIBRARIES.get(match["part"]) if match else None
        if name is not None:
            requested = f"{requirement.name}{requirement.specifier}"
            yield Library(name=name, requirement=requested, error=_trouble(name, requirement))
    yield Library(name="cuda", requirement="", error=_load("libcuda.so.1"))


def wanted(lines: Iterable[str]) -> Iterator[Requirement]:
    """The wheels of the extra `and-cuda` among the requirements of a package."""
    for line in lines:
        if _EXTRA in line.replace("'", '"'):
            yield Requirement(line)


def _trouble(name: str, requirement: Requirement) -> str | None:
    try:
        held = distribution(requirement.name)
    except PackageNotFoundError:
        of_system = ctypes.util.find_library(name)
        return "missing" if of_system is None else _load(of_system)
    if not requirement.specifier.contains(held.version, prereleases=True):
        return f"{held.version} is not {requirement.specifier}"
    files = [Path(str(held.locate_file(f))) for f in held.files or () if f"lib{name}.so" in f.name]
    return _load(str(files[0])) if files else "its wheel has no such file"


def _load(path: str) -> str | None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)[:200]
    return None


_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class TensorFlowInfo:
    """What TensorFlow reports of this machine.

    Attributes:
        error: why it does not load; None if it does.
        gpus: the GPUs that it sees.
        has_cuda: whether it was built for GPUs.
        horovod: what Horovod reports: "missing", "gloo", "gloo, mpi", or why it does not load.
        libraries: those of CUDA, where it was built for GPUs.
    """

    error: str | None = None
    gpus: tuple[str, ...] = ()
    has_cuda: bool = False
    horovod: str = "missing"
    libraries: tuple[Library, ...] = ()

    def to_json(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def probe(cls) -> TensorFlowInfo:
        """Load TensorFlow in a process of its own; a crash is a result too."""
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "phalanx.diagnostics.doctor.probe_tensorflow"],
                env={**os.environ, **quiet},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return cls(error=f"it does not load within {_TIMEOUT:.0f} s")
        try:
            document = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            last_line = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return cls(error=last_line[0][:300])
        return cls.from_fields(document)

    @classmethod
    def from_fields(cls, document: Mapping[str, Any]) -> TensorFlowInfo:
        """From JSON."""
        libraries = tuple(Library.from_fields(fields) for fields in document["libraries"])
        return cls(**{**document, "gpus": tuple(document["gpus"]), "libraries": libraries})


def main() -> int:
    """Print the report as JSON."""
    print(report().to_json())
    return 0


def report() -> TensorFlowInfo:
    """Load TensorFlow and report."""
    try:
        import keras  # noqa: F401  # the two must load together
        import tensorflow as tf

        gpus = tuple(device.name for device in tf.config.list_physical_devices("GPU"))
    except Exception as error:  # a library that does not load raises what it likes
        return TensorFlowInfo(error=f"{type(error).__name__}: {str(error)[:300]}")
    has_cuda = bool(tf.test.is_built_with_cuda())
    return TensorFlowInfo(
        gpus=gpus,
        has_cuda=has_cuda,
        horovod=_horovod(),
        libraries=tuple(libraries()) if has_cuda else (),
    )


def _horovod() -> str:
    from phalanx.errors import ConfigurationError
    from phalanx.horovod.library import is_installed, load

    if not is_installed():
        return "missing"
    try:
        library = load()
    except ConfigurationError as error:
        return str(error)
    built = {"gloo": library.gloo_built(), "mpi": library.mpi_built(), "nccl": library.nccl_built()}
    return ", ".join(name for name, is_built in built.items() if is_built)


if __name__ == "__main__":
    sys.exit(main())
