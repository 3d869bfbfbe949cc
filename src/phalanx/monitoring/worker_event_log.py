"""This worker's records, written so that a failing disk never ends the training."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from phalanx.cluster.spec import WorkerSpec
from phalanx.monitoring.events import RecordWriter, records_path

_log = logging.getLogger(__name__)


class EventLog(Protocol):
    """Where records go."""

    def write(self, kind: str, /, **fields: object) -> None:
        """Append one record; see `RecordWriter.write`."""


class WorkerJournal:
    """Appends to this worker's file; where that fails, says so once and goes on.

    Each record is tried, so records come back when there is space again.
    """

    def __init__(self, open_writer: Callable[[], EventLog]) -> None:
        """Open the file at the first record, with `open_writer`."""
        self._open = open_writer
        self._writer: EventLog | None = None
        self._told = False
        self._lock = threading.Lock()

    def write(self, kind: str, /, **fields: object) -> None:
        """Append one record, if that can be done."""
        with self._lock:
            try:
                if self._writer is None:
                    self._writer = self._open()
                self._writer.write(kind, **fields)
            except OSError as error:
                if not self._told:
                    _log.warning("cannot write records, training goes on without: %s", error)
                self._told = True


_journals: dict[tuple[int, str, int], WorkerJournal] = {}


def journal_of(run_dir: str, rank: int) -> WorkerJournal:
    """The journal of one worker of a run: one object a process."""
    path = records_path(run_dir, rank)
    made = WorkerJournal(lambda: RecordWriter(path))
    return _journals.setdefault((os.getpid(), run_dir, rank), made)


def worker_event_log(environment: Mapping[str, str]) -> WorkerJournal | None:
    """The journal of the worker that `environment` describes; None where it describes none."""
    spec = WorkerSpec.from_environment(environment)
    if spec is None or spec.run_dir is None:
        return None
    return journal_of(spec.run_dir, spec.rank)
