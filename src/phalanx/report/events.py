"""The kinds of records that pages about a run are made of."""

from __future__ import annotations

from phalanx.report.event import Event, Numbers
from phalanx.report.launcher_events import (
    AttemptStart,
    Preemption,
    Resize,
    Restart,
    RunEnd,
    RunStart,
    Stall,
    WorkerExit,
    WorkerReplaced,
)
from phalanx.report.worker_events import (
    Checkpoint,
    CheckpointFailed,
    EpochLogs,
    FitEnd,
    FitStart,
    Gradients,
    Heartbeat,
    StepLogs,
    Stop,
    Straggler,
    Throughput,
    WorkerEnd,
    WorkerStart,
)

__all__ = [
    "KINDS",
    "AttemptStart",
    "Checkpoint",
    "CheckpointFailed",
    "EpochLogs",
    "Event",
    "FitEnd",
    "FitStart",
    "Gradients",
    "Heartbeat",
    "Numbers",
    "Preemption",
    "Resize",
    "Restart",
    "RunEnd",
    "RunStart",
    "Stall",
    "StepLogs",
    "Stop",
    "Straggler",
    "Throughput",
    "WorkerEnd",
    "WorkerExit",
    "WorkerReplaced",
    "WorkerStart",
]

KINDS: dict[str, type[Event]] = {cls.KIND: cls for cls in Event.__subclasses__()}
"""Kind -> what it is read as. Records of other kinds are passed over."""
