"""A run as it was recorded, at one moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from phalanx.launcher.redaction import redact
from phalanx.monitoring.event_parsing import integer, text, texts, texts_by_name
from phalanx.monitoring.events import Event, RunEnd, RunStart, WorkerStart
from phalanx.report.event_reader import CorruptLines, RunReader
from phalanx.report.goodput import Goodput, measure_goodput

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, kw_only=True)
class RunData:
    """All that is known of a run.

    Attributes:
        name: its directory's name.
        file: what `run.json` says.
        events: what happened, file by file in the order of writing.
        damage: what could not be read.
    """

    name: str
    file: RunFile
    events: tuple[Event, ...]
    damage: tuple[CorruptLines, ...]

    def of(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return cast(list[E], self._by_kind.get(kind, []))

    def of_worker(self, kind: type[E], rank: int) -> list[E]:
        """All events of one kind that one worker wrote."""
        return cast(list[E], self._by_worker.get((kind, rank), []))

    @cached_property
    def _by_kind(self) -> dict[type[Event], list[Event]]:
        found: dict[type[Event], list[Event]] = {}
        for event in self.events:
            found.setdefault(type(event), []).append(event)
        return found

    @cached_property
    def _by_worker(self) -> dict[tuple[type[Event], int | None], list[Event]]:
        found: dict[tuple[type[Event], int | None], list[Event]] = {}
        for event in self.events:
            found.setdefault((type(event), event.writer_rank), []).append(event)
        return found

    @cached_property
    def began(self) -> float:
        """When the run began, in seconds since the epoch: 0 on its axis of time."""
        starts = [event.t for event in self.of(RunStart)]
        if starts:
            return starts[0]
        known = [event.t for event in self.events]
        if self.file.started is not None:
            known.append(self.file.started)
        return min(known, default=0.0)

    @cached_property
    def last(self) -> float:
        """When it last reported."""
        known = [self.began, *(event.t for event in self.events)]
        if self.file.ended is not None:
            known.append(self.file.ended)
        return max(known)

    @cached_property
    def end(self) -> RunEnd | None:
        """How it ended, by its records or else by `run.json`; None while it has not."""
        ends = self.of(RunEnd)
        run_started = max(
            (event.t for event in self.of(RunStart)), default=0.0
        )  # It may continue later.
        if ends and ends[-1].t >= run_started:
            return ends[-1]
        if self.file.exit_code is None:
            return None
        return RunEnd(
            t=self.last if self.file.ended is None else self.file.ended,
            attempt=self.attempts - 1,
            fit=None,
            exit_code=self.file.exit_code,
            report=self.file.report,
        )

    @cached_property
    def attempts(self) -> int:
        """How often the worker group was started."""
        return 1 + max((event.attempt for event in self.events), default=0)

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The workers of which something was recorded."""
        return sorted({event.writer_rank for event in self.events if event.writer_rank is not None})

    @cached_property
    def workers(self) -> int | None:
        """How many workers there were to be."""
        start_events: list[RunStart | WorkerStart] = [*self.of(RunStart), *self.of(WorkerStart)]
        for start in start_events:
            if start.workers is not None:
                return start.workers
        requested = self.file.options.get("workers")
        return requested if isinstance(requested, int) else len(self.ranks) or None

    @cached_property
    def goodput(self) -> Goodput | None:
        """What its time was spent on; None if it has called no `fit`."""
        return measure_goodput(self.events, until=None if self.end is None else self.end.t)

    def seconds(self, event: Event) -> float:
        """Where an event is on the axis of time."""
        return event.t - self.began


def load_run(path: Path) -> RunData:
    """Read a run's directory as far as it can be read."""
    reader = RunReader(path)
    return RunData(
        name=path.resolve().name,
        file=read_run_file(path),
        events=tuple(reader.poll()),
        damage=reader.damage,
    )


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
        argv=tuple(redact(texts(document.get("argv")))),  # Older runs recorded all of it.
        started=_seconds(document.get("started")),
        ended=_seconds(result.get("ended")),
        exit_code=integer(result.get("exit_code")),
        report=text(result.get("report")),
        seed=integer(document.get("seed")),
        git=_commit(document.get("git")),
        versions=texts_by_name(document.get("versions")),
        options=_without_secrets(_mapping(document.get("options"))),
        machine=_mapping(document.get("machine")),
    )


def _without_secrets(options: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = options.get("arguments")
    return {**options, "arguments": redact(texts(arguments))} if arguments else options


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
