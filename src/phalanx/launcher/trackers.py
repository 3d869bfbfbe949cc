"""Experiment trackers of a run: their names, and the process that feeds each.

A tracker is fed by a process of its own, `python -m phalanx.trackers`, which reads the event logs.
So a tracker that is slow, unreachable or broken costs no step and cannot end the launcher. A new
tracker is a line in `TRACKERS` and a file in `phalanx/trackers/`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from phalanx.errors import ConfigurationError, LaunchError
from phalanx.launcher.process import StartProcess, WorkerHandle, WorkerProcess, kill_and_wait
from phalanx.monitoring.durable_files import PRIVATE_DIR

MAX_REPLACEMENTS = 5
"""Of one tracker's process, in one run."""
FINISH_SECONDS = 30.0
"""After the end of a run, for the trackers to take the rest."""
UPLOAD_SECONDS = 900.0
"""The same where they send a model file, while the tracker can be reached."""
INTERRUPTED_SECONDS = 5.0
"""The same if a signal ended the run: whoever sent it may kill the launcher soon."""
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class TrackerInfo:
    """One tracker.

    Attributes:
        name: its word on the command line, and the name of its file in `phalanx/trackers/`.
        package: the distribution on PyPI that it needs.
        extra: the extra of Phalanx that installs the package; None if Phalanx depends on it.
    """

    name: str
    package: str
    extra: str | None


TRACKERS: tuple[TrackerInfo, ...] = (
    TrackerInfo(name="wandb", package="wandb", extra="wandb"),
    TrackerInfo(name="mlflow", package="mlflow", extra="mlflow"),
    TrackerInfo(name="tensorboard", package="tensorboard", extra=None),
    TrackerInfo(name="comet", package="comet_ml", extra="comet"),
    TrackerInfo(name="aim", package="aim", extra="aim"),
    TrackerInfo(name="trackio", package="trackio", extra="trackio"),
)
TRACKER_NAMES = tuple(info.name for info in TRACKERS)


def parse_trackers(items: Iterable[str]) -> tuple[str, ...]:
    """`["wandb,mlflow", "aim"]` as names, each once, in their order.

    Raises:
        ConfigurationError: one of them is the name of no tracker.
    """
    names = dict.fromkeys(name.strip() for item in items for name in item.split(","))
    for name in names:
        if name not in TRACKER_NAMES:
            raise ConfigurationError(
                f"--tracker must be one or several of {', '.join(TRACKER_NAMES)}; found {name!r}."
            )
    return tuple(names)


def check_installed(names: Iterable[str]) -> None:
    """Refuse trackers whose package is not installed.

    Raises:
        ConfigurationError: names the extra that installs it.
    """
    for info in TRACKERS:
        if info.name not in names:
            continue
        try:
            # The distribution: a directory `wandb/` in the working directory is importable, too.
            version(info.package)
        except PackageNotFoundError as error:
            raise ConfigurationError(
                f"The tracker {info.name} needs the package {info.package}, which is not "
                f"installed. Run: pip install 'phalanx[{info.extra}]'"
            ) from error


def state_path(run_dir: Path, tracker: str) -> Path:
    """The file that says which run of the tracker this is, and what it has taken."""
    return run_dir / "trackers" / f"{tracker}.json"


def read_state(path: Path) -> Mapping[str, Any]:
    """What the file says; {} if there is none that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(kw_only=True)
class _Sender:
    """The process of one tracker, and what was announced about it."""

    name: str
    handle: WorkerHandle | None = None
    replacements: int = MAX_REPLACEMENTS
    error: str | None = None
    place: str | None = None


@dataclass(kw_only=True)
class TrackerProcesses:
    """Starts the processes that feed the trackers, looks after them, and ends them.

    Nothing here raises on account of a tracker.

    Attributes:
        names: the trackers; empty for none.
        project: the project or experiment in the tracker; None for the tracker's default.
        artifacts: whether the model file is sent, too.
        environment: of every process, such as keys and addresses.
        run_dir: the run's directory; state and logs are in `trackers` there.
        announce: prints a message for the user.
        start: starts a process.
        now: seconds, increasing.
        sleep: waits for some seconds.
    """

    names: Sequence[str]
    project: str | None
    artifacts: bool
    environment: Mapping[str, str]
    run_dir: Path
    announce: Callable[[str], None]
    start: StartProcess = WorkerProcess
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _senders: list[_Sender] = field(default_factory=list)
    _next_look: float = 0.0

    def __enter__(self) -> TrackerProcesses:
        """Start all of them."""
        if self.names:
            with suppress(OSError):
                (self.run_dir / "trackers").mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        for name in self.names:
            before = read_state(state_path(self.run_dir, name))
            sender = _Sender(name=name, error=before.get("error"))
            self._senders.append(sender)
            self._start(sender)
        return self

    def __exit__(self, *reason: object) -> None:
        """End those that still run; what they had not sent can be sent later."""
        handles = {
            f"tracker {sender.name}": sender.handle
            for sender in self._senders
            if sender.handle is not None
        }
        kill_and_wait(handles, announce=self.announce, now=self.now, sleep=self.sleep)
        for sender in self._senders:
            sender.handle = None

    def poll(self) -> None:
        """Every two seconds: start what has ended again, and announce errors."""
        if not self._senders or self.now() < self._next_look:
            return
        self._next_look = self.now() + _LOOK_SECONDS
        for sender in self._senders:
            self._announce_state(sender)
            if sender.handle is None or (code := sender.handle.poll()) is None:
                continue
            sender.handle = None
            if sender.replacements == 0:
                self.announce(
                    f"tracker {sender.name}: its process ended with {code} again and is not "
                    f"started any more; see {self._log(sender)}. {self._later(sender)}"
                )
                continue
            sender.replacements -= 1
            self._start(sender)

    def finish(
        self, *, seconds: float, upload_seconds: float, is_interrupted: Callable[[], bool]
    ) -> None:
        """Wait until the trackers have taken all of a run that has ended.

        Args:
            seconds: how long at most.
            upload_seconds: how long at most where the model file is sent, too, and the tracker can
                be reached.
            is_interrupted: whether the user does not want to wait.
        """
        began = self.now()
        while not is_interrupted():
            waited = self.now() - began
            running = [one for one in self._senders if one.handle and one.handle.poll() is None]
            if waited >= seconds:
                for sender in running:
                    self._announce_state(sender)
                can_go_on = self.artifacts and waited < upload_seconds
                running = [one for one in running if can_go_on and one.error is None]
            if not running:
                break
            self.sleep(0.05)
        for sender in self._senders:
            self._announce_state(sender)
            code = None if sender.handle is None else sender.handle.poll()
            if code is None:
                self.announce(
                    f"tracker {sender.name}: not everything was sent. {self._later(sender)}"
                )
            elif code != 0:
                self.announce(
                    f"tracker {sender.name}: its process ended with {code}; see "
                    f"{self._log(sender)}. {self._later(sender)}"
                )

    def _start(self, sender: _Sender) -> None:
        command = [sys.executable, "-P", "-m", "phalanx.trackers", sender.name, str(self.run_dir)]
        if self.project is not None:
            command += ["--project", self.project]
        if self.artifacts:
            command += ["--artifacts"]
        environment = dict(self.environment)
        environment.pop("TF_CONFIG", None)
        # Trackers look at GPUs through the driver; a GPU's memory is the training's.
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
        try:
            sender.handle = self.start(command, env=environment, log=self._log(sender))
        except (LaunchError, OSError) as error:
            self.announce(f"tracker {sender.name}: cannot start: {error} {self._later(sender)}")

    def _announce_state(self, sender: _Sender) -> None:
        state = read_state(state_path(self.run_dir, sender.name))
        place, error = state.get("place"), state.get("error")
        if isinstance(place, str) and place != sender.place:
            self.announce(f"tracker {sender.name}: {place}")
            sender.place = place
        if error != sender.error:
            sender.error = error
            if isinstance(error, str):
                self.announce(
                    f"tracker {sender.name} cannot be reached, and is tried again: {error}"
                )
            else:
                self.announce(f"tracker {sender.name} is reached again")

    def _log(self, sender: _Sender) -> Path:
        return self.run_dir / "trackers" / f"{sender.name}.log"

    def _later(self, sender: _Sender) -> str:
        artifacts = "--tracker-artifacts " if self.artifacts else ""
        return f"To send the rest: phalanx report --to {sender.name} {artifacts}{self.run_dir}"
