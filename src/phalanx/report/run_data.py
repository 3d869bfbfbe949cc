"""A run as it was recorded, at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from phalanx.report.events import Event, RunEnd, RunStart, WorkerStart
from phalanx.report.reading import Damage, RunReader
from phalanx.report.run_file import RunFile, read_run_file

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
    damage: tuple[Damage, ...]

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
            found.setdefault((type(event), event.rank), []).append(event)
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
        """When something was last heard of it."""
        known = [self.began, *(event.t for event in self.events)]
        if self.file.ended is not None:
            known.append(self.file.ended)
        return max(known)

    @cached_property
    def end(self) -> RunEnd | None:
        """How it ended, by its records or else by `run.json`; None while it has not."""
        ends = self.of(RunEnd)
        begun = max((event.t for event in self.of(RunStart)), default=0.0)  # It may go on later.
        if ends and ends[-1].t >= begun:
            return ends[-1]
        if self.file.exit_code is None:
            return None
        return RunEnd(
            t=self.last if self.file.ended is None else self.file.ended,
            rank=None,
            attempt=self.attempts - 1,
            fit=None,
            exit_code=self.file.exit_code,
            report=self.file.report,
        )

    @cached_property
    def attempts(self) -> int:
        """How often the gang was started."""
        return 1 + max((event.attempt for event in self.events), default=0)

    @cached_property
    def ranks(self) -> Sequence[int]:
        """The workers of which something was recorded."""
        return sorted({event.rank for event in self.events if event.rank is not None})

    @cached_property
    def workers(self) -> int | None:
        """How many workers there were to be."""
        told: list[RunStart | WorkerStart] = [*self.of(RunStart), *self.of(WorkerStart)]
        for start in told:
            if start.workers is not None:
                return start.workers
        asked = self.file.options.get("workers")
        return asked if isinstance(asked, int) else len(self.ranks) or None

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
