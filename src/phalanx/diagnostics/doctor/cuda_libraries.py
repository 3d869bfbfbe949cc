"""Which of CUDA's libraries load: those that TensorFlow's extra `and-cuda` brings, or the system's.

Asked in the process that loads TensorFlow, which by then has loaded them too, where it can.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

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
"""By the part of the wheel's name that is between "nvidia-" and "-cu12"."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One library.

    Attributes:
        name: as the linker calls it: "cudnn"; "cuda" is the driver.
        requirement: the wheel that brings it, as TensorFlow asks for it; "" for the driver.
        error: why it does not load; None where it does.
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
            asked = f"{requirement.name}{requirement.specifier}"
            yield Library(name=name, requirement=asked, error=_trouble(name, requirement))
    yield Library(name="cuda", requirement="", error=_load("libcuda.so.1"))


def wanted(lines: Iterable[str]) -> Iterator[Requirement]:
    """The wheels of `and-cuda` among what a package asks for."""
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
