"""Faults of the command, of its disk and of its clock, injected from outside.

Those of `phalanx.testing.chaos` happen inside a worker. These happen to what is around it: the
launcher is killed, its output is closed, a second launcher starts, a checkpoint rots, the wall
clock is set, the disk is full for a while, a worker cannot start for a while.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from phalanx.checkpoint.manifest import is_manifest
from phalanx.checkpoint.reader import verify
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.errors import UnavailableError


class RunningCommand(Protocol):
    """What a fault acts on.

    Attributes:
        place: the directory of the run's files.
        clock: the file with the shift of the wall clock, in seconds.
        broken: while this file exists, the last worker cannot start.
        checkpoints: the directory of checkpoints.
        unreadable: names of the checkpoints whose manifest was changed.
    """

    place: Path
    clock: Path
    broken: Path
    checkpoints: Path
    unreadable: set[str]

    def kill(self) -> None:
        """Kill the launcher by SIGKILL, and wait for the end of all workers."""

    def resume(self) -> None:
        """Start the same command again."""

    def resume_if_rejected(self) -> None:
        """Start the same command again if the launcher could not write."""

    def kill_last_worker(self) -> bool:
        """Whether there was one."""

    def close_output(self) -> None:
        """Close the end of the pipe that reads what the launcher prints."""

    def start_second(self) -> int:
        """Run the same command beside it until one of both ends; its exit code."""

    def wait_for_steps(self, number: int, seconds: float) -> None:
        """Until so many more steps were trained, or that time has passed."""


@dataclass(frozen=True, kw_only=True)
class CommandFault:
    """A fault that is injected when the training has reached a step.

    Attributes:
        step: the chief has completed so many.
    """

    step: int

    def inject(self, command: RunningCommand) -> str | None:
        """Do it; returns what went wrong, None if nothing did.

        Raises:
            NotNowError: it cannot happen at this moment.
        """
        raise NotImplementedError


class NotNowError(Exception):
    """The fault cannot happen at this moment."""


@dataclass(frozen=True, kw_only=True)
class KillLauncher(CommandFault):
    """SIGKILL to the launcher; the same command resumes the run."""

    def inject(self, command: RunningCommand) -> str | None:
        command.kill()
        command.resume()
        return None


@dataclass(frozen=True, kw_only=True)
class CloseOutput(CommandFault):
    """The reader of the launcher's output ends, as that of `| head` does."""

    def inject(self, command: RunningCommand) -> str | None:
        command.close_output()
        return None


@dataclass(frozen=True, kw_only=True)
class SecondLauncher(CommandFault):
    """The same command is started again beside the first one."""

    def inject(self, command: RunningCommand) -> str | None:
        code = command.start_second()
        return None if code == UnavailableError.exit_code else f"a second launcher: code {code}"


@dataclass(frozen=True, kw_only=True)
class BitRot(CommandFault):
    """The launcher is killed, one bit of the newest checkpoint changes, and the run is resumed.

    In this order no later checkpoint is committed, which would leave the changed one behind.

    Attributes:
        position: of the bit, as a fraction of all bytes of the checkpoint.
    """

    position: float

    def inject(self, command: RunningCommand) -> str | None:
        if len(_complete(command.checkpoints)) < 2:
            raise NotNowError
        command.kill()
        complete = _complete(command.checkpoints)
        changed = flip_bit(command.checkpoints / f"step-{max(complete):08d}", self.position)
        if is_manifest(changed.name):
            command.unreadable.add(changed.parent.name)
        command.resume()
        return None


def _complete(checkpoints: Path) -> list[int]:
    return [step for step, wrong in verify(StorageDir.at(checkpoints)) if not wrong]


@dataclass(frozen=True, kw_only=True)
class ClockJump(CommandFault):
    """The wall clock of the launcher and of all workers is set.

    Attributes:
        seconds: forward, or backward if negative.
    """

    seconds: int

    def inject(self, command: RunningCommand) -> str | None:
        with command.clock.open("r+b") as file:
            (shift,) = struct.unpack("<q", file.read(8))
            file.seek(0)
            file.write(struct.pack("<q", shift + self.seconds))
        return None


@dataclass(frozen=True, kw_only=True)
class FullDisk(CommandFault):
    """The disk with run directory and checkpoints is full for that time.

    A launcher that starts meanwhile is rejected, and started again when there is room.

    Attributes:
        seconds: until there is room again.
    """

    seconds: float

    def inject(self, command: RunningCommand) -> str | None:
        ballast = command.place / "ballast"
        fill(ballast)
        time.sleep(self.seconds)
        ballast.unlink()
        command.resume_if_rejected()
        return None


@dataclass(frozen=True, kw_only=True)
class LoseWorker(CommandFault):
    """The last worker is killed and cannot start until the others have trained some steps."""

    def inject(self, command: RunningCommand) -> str | None:
        command.broken.touch()
        try:
            if not command.kill_last_worker():
                raise NotNowError
            command.wait_for_steps(6, 120)
        finally:
            command.broken.unlink()
        return None


def flip_bit(folder: Path, position: float) -> Path:
    """Change one bit of the files in `folder`.

    Args:
        folder: of a checkpoint.
        position: from 0 to 1, in the order of the files' names.

    Returns:
        The file that was changed.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    at = int(position * sum(path.stat().st_size for path in files))
    for path in files:
        if at < (size := path.stat().st_size):
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 4]))
            return path
        at -= size
    raise ValueError(f"{folder} has no bit at {position}")


def fill(ballast: Path) -> None:
    """Write a file until its disk has no room."""
    with ballast.open("wb", buffering=0) as file:
        chunk = b"\0" * (1 << 16)
        while chunk:
            try:
                file.write(chunk)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                chunk = chunk[: len(chunk) // 2]


def mount_disk(place: Path, size: str) -> Callable[[], None] | None:
    """Mount a small disk of its own at `place`; needs root.

    Returns:
        What unmounts it; None if it cannot be mounted.
    """
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "soak", str(place)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        return None

    def unmount() -> None:
        with suppress(OSError):
            subprocess.run(["umount", str(place)], capture_output=True, check=False)

    return unmount
