"""What checks look at: this machine, as values that tests can make too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from phalanx.cluster.local_host import LocalHost
from phalanx.diagnostics.doctor.all_reduce import AllReduced
from phalanx.diagnostics.doctor.all_reduce_cost import PARAMETERS
from phalanx.diagnostics.doctor.cuda_libraries import Library
from phalanx.launch.resources import count_gpus, visible_gpus

_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class TensorFlowInfo:
    """What TensorFlow says of this machine, asked in a process of its own.

    Attributes:
        error: why it does not load; None where it does.
        gpus: the GPUs that it sees.
        has_cuda: whether it was built for GPUs.
        horovod: what Horovod says: "missing", "gloo", "gloo, mpi", or why it does not load.
        libraries: those of CUDA, where it was built for GPUs.
    """

    error: str | None = None
    gpus: tuple[str, ...] = ()
    has_cuda: bool = False
    horovod: str = "missing"
    libraries: tuple[Library, ...] = ()

    def to_json(self) -> str:
        """For the other process."""
        return json.dumps(asdict(self))

    @classmethod
    def probe(cls) -> TensorFlowInfo:
        """Ask TensorFlow; a crash of it is an answer too."""
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "phalanx.diagnostics.doctor.probe_tensorflow"],
                env={**os.environ, **quiet},
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return cls(error=f"it does not load within {_SECONDS:.0f} s")
        try:
            document = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            return cls(error=said[0][:300])
        return cls.from_fields(document)

    @classmethod
    def from_fields(cls, document: Mapping[str, Any]) -> TensorFlowInfo:
        """From JSON."""
        libraries = tuple(Library.from_fields(fields) for fields in document["libraries"])
        return cls(**{**document, "gpus": tuple(document["gpus"]), "libraries": libraries})


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """This machine.

    Attributes:
        environment: variables.
        directory: where runs are to be written.
        tensorflow: what TensorFlow says.
        requirements: what Phalanx asks for, as packages say it ("keras>=3.12").
        root: the file system, for device files and `/proc`.
        me: its names and addresses; None compares no cluster's with them.
        all_reduced: what came of an all-reduce of two processes; None where none was tried.
        parameters: of the model whose steps are spoken of.
    """

    environment: Mapping[str, str]
    directory: Path
    tensorflow: TensorFlowInfo = field(default_factory=TensorFlowInfo)
    requirements: tuple[str, ...] = field(default_factory=lambda: tuple(requires("phalanx") or ()))
    root: Path = Path("/")
    me: LocalHost | None = None
    all_reduced: AllReduced | None = None
    parameters: int = PARAMETERS

    @property
    def gpus(self) -> tuple[str, ...]:
        """Those that this machine has, or CUDA_VISIBLE_DEVICES leaves."""
        visible = self.environment.get("CUDA_VISIBLE_DEVICES")
        return visible_gpus(visible) if visible is not None else count_gpus(self.root / "dev")
