"""`run.json`: what was asked, and at the end the result, as far as it can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from phalanx.report.fields import integer, text, texts, texts_by_name

RUN_FILE = "run.json"


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """What `run.json` says. What it does not say is None or empty.

    Attributes:
        started: when, in seconds since the epoch.
        ended: when, once it has a result.
        exit_code: the result.
        report: the root cause, as the terminal showed it.
        problem: why the file could not be read.
    """

    argv: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    report: str | None = None
    seed: int | None = None
    git: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


def read_run_file(run: Path) -> RunFile:
    """The run's `run.json`; one that is missing or damaged is said in `problem`."""
    try:
        document = json.loads((run / RUN_FILE).read_bytes())
    except FileNotFoundError:
        return RunFile(problem=f"There is no {RUN_FILE}.")
    except (OSError, ValueError, RecursionError) as error:
        return RunFile(problem=f"{RUN_FILE} cannot be read: {error}.")
    if not isinstance(document, dict):
        return RunFile(problem=f"{RUN_FILE} holds no object.")
    result = _mapping(document.get("result"))
    return RunFile(
        argv=texts(document.get("argv")),
        started=_seconds(document.get("started")),
        ended=_seconds(result.get("ended")),
        exit_code=integer(result.get("exit_code")),
        report=text(result.get("report")),
        seed=integer(document.get("seed")),
        git=_commit(document.get("git")),
        versions=texts_by_name(document.get("versions")),
        options=_mapping(document.get("options")),
        machine=_mapping(document.get("machine")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _commit(value: object) -> str | None:
    if isinstance(value, dict):
        changed = " with changes" if value.get("changed") else ""
        commit = text(value.get("commit"))
        return commit and commit + changed
    return text(value)


def _seconds(value: object) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None
