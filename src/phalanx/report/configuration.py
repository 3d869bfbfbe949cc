"""What a run was asked for and what it ran with, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phalanx.monitoring.events import FitStart, WorkerStart
from phalanx.report.formatting import MISSING, format_fit
from phalanx.report.html import Table
from phalanx.report.run_data import RunData


def configuration_tables(data: RunData) -> list[Table]:
    """Calls of `fit`, the command and its options, and versions."""
    fits = [
        (str(each.attempt), str(each.fit or 0), format_fit(each))
        for each in data.of(FitStart)
        if each.writer_rank == min(data.ranks, default=0)
    ]
    options = [(name, text) for name, text in configuration(data).items()]
    versions = list(versions_of(data).items())
    return [
        Table(title="Calls of fit", columns=("attempt", "fit", "what"), rows=fits),
        Table(title="The run", columns=("option", "value"), rows=options),
        Table(title="Versions", columns=("package", "version"), rows=versions),
    ]


def configuration(data: RunData) -> dict[str, str]:
    """The command, its options, seed, machine and commit, by name."""
    file = data.file
    found = {"command": " ".join(file.argv) or MISSING}
    found |= {name.replace("_", " "): _text(value) for name, value in file.options.items()}
    if file.seed is not None:
        found["seed"] = str(file.seed)
    found |= {f"machine: {name}": _text(value) for name, value in file.machine.items()}
    found["git commit"] = file.git or MISSING
    return found


def versions_of(data: RunData) -> Mapping[str, str]:
    """The launcher's word on versions, and the workers' where that says more."""
    found = dict(data.file.versions)
    for start in data.of(WorkerStart):
        for name, version in start.versions.items():
            found.setdefault(name, version)
    return found


def _text(value: Any) -> str:
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, default=str)
