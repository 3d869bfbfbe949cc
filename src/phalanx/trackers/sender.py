"""Feeds one tracker from the event logs of a run: to its end, or with what there is."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from phalanx.errors import TrackerError
from phalanx.launcher.redaction import redact_text
from phalanx.launcher.trackers import read_state, state_path
from phalanx.monitoring.durable_files import PRIVATE_DIR, PRIVATE_FILE, write_durably
from phalanx.monitoring.event_parsing import integer, text, texts_by_name
from phalanx.report.event_reader import RunReader
from phalanx.trackers.protocol import Point, Tracker, Value
from phalanx.trackers.run_config import run_info
from phalanx.trackers.run_metrics import RunMetrics

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Between two looks at the event logs of a run that runs."""
LONGEST_WAIT = 60.0
"""Between two tries, in seconds."""
TRIES = 3
"""If a user waits for the end."""


@dataclass(kw_only=True)
class TrackerState:
    """What one tracker has of a run: `<run>/trackers/NAME.json`.

    Attributes:
        key: drawn once for the run in this tracker.
        id: the tracker's id of the run; None before it was started there.
        project: the project in the tracker.
        last_steps: of each series, the last step that is safe at the tracker.
        prefixes: as in `RunMetrics`.
        artifact: the model file that it has, with the time of its last change.
        place: where the user finds the run.
        error: why the tracker cannot be reached at the moment; None if it can.
        status: the status that it was given last.
    """

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    id: str | None = None
    project: str | None = None
    last_steps: Mapping[str, int] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    artifact: str | None = None
    place: str | None = None
    error: str | None = None
    status: str | None = None

    @classmethod
    def read(cls, path: Path) -> TrackerState:
        """What the file says; a new state without one."""
        found = read_state(path)
        steps = found.get("last_steps")
        steps = steps if isinstance(steps, dict) else {}
        state = cls(
            id=text(found.get("id")),
            project=text(found.get("project")),
            last_steps={n: s for n, each in steps.items() if (s := integer(each)) is not None},
            prefixes=texts_by_name(found.get("prefixes")),
            artifact=text(found.get("artifact")),
            place=text(found.get("place")),
            error=text(found.get("error")),
            status=text(found.get("status")),
        )
        if (key := text(found.get("key"))) is not None:
            state.key = key
        return state

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path.parent.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        write_durably(path, json.dumps(vars(self), indent=2) + "\n", mode=PRIVATE_FILE)


@dataclass(kw_only=True)
class Sender:
    """Sends the events of one run to one tracker.

    A step in the state was taken by the tracker before the state was written. So after a crash
    between the two, some points are sent twice, and none is lost.

    Attributes:
        name: the tracker's name.
        run_dir: the run's directory.
        make: makes the tracker; this may import its package.
        follows: whether to wait for the end of the run, and never to give up.
        project: as the user asked; None takes that of the state, else the tracker's default.
        artifacts: whether to send the model file.
        sleep: waits for some seconds.
    """

    name: str
    run_dir: Path
    make: Callable[[], Tracker]
    follows: bool
    project: str | None = None
    artifacts: bool = False
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> TrackerState:
        """Send everything; returns the state at the end.

        Raises:
            TrackerError: another process sends this run to this tracker, or the tracker could not
                be reached and this does not follow the run.
        """
        path = state_path(self.run_dir, self.name)
        path.parent.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        try:
            with FileLock(path.with_suffix(".lock"), blocking=False, mode=PRIVATE_FILE):
                return self._until_sent(path)
        except Timeout as error:
            raise TrackerError(
                f"Another process sends the run {self.run_dir.name} to {self.name}. Wait for the "
                "end of the run, which sends the rest."
            ) from error

    def _until_sent(self, path: Path) -> TrackerState:
        failures = 0
        while True:
            session = _Session(self, path)
            try:
                return session.run()
            except Exception as error:
                failures = 1 if session.has_sent else failures + 1
                _log.warning("%s: try %d failed", self.name, failures, exc_info=error)
                if not self.follows and failures == TRIES:
                    raise TrackerError(
                        f"The tracker {self.name} cannot take the run {self.run_dir.name}: "
                        f"{_one_line(error)}. Nothing is lost: try again later."
                    ) from error
                session.report(_one_line(error))
            self.sleep(wait_after(failures))


def wait_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(LONGEST_WAIT, 2.0 ** min(failures - 1, 10))  # no float has 2 ** 1024


class _Session:
    """From the start of the tracker to the end of the run, or to the first error.

    After an error another session reads the event logs from the start, and sends what the state
    does not have.

    Attributes:
        has_sent: whether the tracker has taken something.
    """

    def __init__(self, requested: Sender, path: Path) -> None:
        self.has_sent = False
        self._requested = requested
        self._path = path
        self._state = TrackerState.read(path)
        self._state.project = requested.project or self._state.project
        self._metrics = RunMetrics(
            last_steps=dict(self._state.last_steps), prefixes=dict(self._state.prefixes)
        )
        self._described: dict[str, Value] = {}

    def run(self) -> TrackerState:
        """Send everything; any error ends it."""
        self._state.write(self._path)  # The key, before anything is made with it.
        tracker = self._start()
        reader = RunReader(self._requested.run_dir)
        while True:
            # The last look comes after the end was seen: workers end before the launcher.
            is_last = self._metrics.end is not None or not self._requested.follows
            self._send(tracker, self._metrics.take(reader.poll()))
            if is_last:
                break
            if self._metrics.end is None:
                self._requested.sleep(POLL_SECONDS)
        if self._requested.artifacts:
            self._send_model(tracker)
        tracker.finish(self._metrics.status)
        self._state.status = self._metrics.status
        self._confirm()
        return self._state

    def report(self, error: str) -> None:
        """Write down why the tracker cannot be reached, for the launcher to announce."""
        if error != self._state.error:
            self._state.error = error
            try:
                self._state.write(self._path)
            except OSError as full:
                _log.warning("cannot write the state: %s", full)

    def _start(self) -> Tracker:
        tracker = self._requested.make()
        directory = self._requested.run_dir
        info = run_info(directory, self._state.key, self._state.id, self._state.project)
        self._state.id = tracker.start(info)
        self._state.place = redact_text(tracker.place)
        self._state.write(self._path)
        return tracker

    def _send(self, tracker: Tracker, points: Sequence[Point]) -> None:
        facts = self._metrics.facts
        new = {name: facts[name] for name in facts if facts[name] != self._described.get(name)}
        if not points and not new:
            return
        if points:
            tracker.log(points)
        if new:
            tracker.describe(new)
            self._described.update(new)
        self.has_sent = True
        if tracker.flush():
            self._confirm()
        elif self._state.error is not None:
            self._state.error = None
            self._state.write(self._path)

    def _send_model(self, tracker: Tracker) -> None:
        """Send the model file that was saved last: with `save_best_only`, the best.

        Weights alone are sent if there is no file of a whole model.
        """
        saved = [Path(name) for name in self._metrics.models if Path(name).is_file()]
        whole = [path for path in saved if not path.name.endswith(".weights.h5")]
        if not saved:
            return
        path = (whole or saved)[-1]
        seen = f"{path} {path.stat().st_mtime_ns}"
        if seen != self._state.artifact:
            tracker.log_artifact(path)
            self._state.artifact = seen

    def _confirm(self) -> None:
        """All that was sent so far is safe at the tracker."""
        self._state.last_steps = dict(self._metrics.last_steps)
        self._state.prefixes = dict(self._metrics.prefixes)
        self._state.error = None
        self._state.write(self._path)


def _one_line(error: BaseException) -> str:
    lines = redact_text(str(error)).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
