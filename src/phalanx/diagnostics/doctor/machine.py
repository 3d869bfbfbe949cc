"""This machine as values, which checks read and tests can make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import requires
from pathlib import Path

from phalanx.cluster.local_host import LocalHost
from phalanx.diagnostics.doctor.all_reduce import PARAMETERS, AllReduceResult
from phalanx.diagnostics.doctor.probe_tensorflow import TensorFlowInfo
from phalanx.launcher.resources import count_gpus, visible_gpus


@dataclass(frozen=True, kw_only=True)
class MachineInfo:
    """This machine.

    Attributes:
        environment: variables.
        directory: of runs.
        tensorflow: what TensorFlow reports.
        requirements: the requirements of the package ("keras>=3.12").
        root: the file system, for device files and `/proc`.
        me: its names and addresses; None skips the comparison with a cluster's.
        all_reduce: the result of an all-reduce of two processes; None if none was run.
        parameters: of the model for which the cost of an all-reduce is estimated.
    """

    environment: Mapping[str, str]
    directory: Path
    tensorflow: TensorFlowInfo = field(default_factory=TensorFlowInfo)
    requirements: tuple[str, ...] = field(default_factory=lambda: tuple(requires("phalanx") or ()))
    root: Path = Path("/")
    me: LocalHost | None = None
    all_reduce: AllReduceResult | None = None
    parameters: int = PARAMETERS

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of this machine, or those of CUDA_VISIBLE_DEVICES."""
        visible = self.environment.get("CUDA_VISIBLE_DEVICES")
        return visible_gpus(visible) if visible is not None else count_gpus(self.root / "dev")
