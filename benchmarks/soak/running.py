"""The command of a disturbed run: started, disturbed from outside, resumed, and waited for."""

from __future__ import annotations

import os
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

from phalanx.testing.chaos import command
from soak.command_faults import NotNowError, mount_disk
from soak.plans import WORKERS, RunPlan

TRAINING = Path(__file__).with_name("training.py")
CLOCK_SOURCE = Path(__file__).parents[2] / "tests" / "command" / "wall_clock.c"
MARK = "PHALANX_SOAK"
DEADLINE = 900.0
DISK = "64m"
EXIT_REJECTED = 2
SECOND_ENDS = 120.0
"""Seconds in which a second launcher ends."""
ORPHANS_END = 30.0
"""Seconds in which each worker ends after the launcher was killed."""

OPTIONS = (
    "--seed", "11", "--max-restarts", "20", "--hang-timeout", "30", "--tee", "chief", "--resume",
    "--name", "run",
)  # fmt: skip


class SoakCommand:
    """`phalanx run` over the small training, with all that a fault acts on.

    Args:
        place: an empty directory for all its files.
        plan: the faults.
        clock_library: the library that shifts the wall clock; None without a C compiler.
    """

    def __init__(self, place: Path, plan: RunPlan, *, clock_library: Path | None) -> None:
        self.place = place / "disk"
        self.place.mkdir(parents=True)
        self.clock = place / "clock"
        self.clock.write_bytes(struct.pack("<q", 0))
        self.broken = place / "broken"
        self.checkpoints = self.place / "checkpoints"
        self.wrong: list[str] = []
        self.unreadable: set[str] = set()
        self.happened: list[str] = []
        self._files = place
        self._plan = plan
        self._mark = uuid.uuid4().hex
        self._progress = place / "progress"
        self._unmount = mount_disk(self.place, DISK)
        self._clock_library = clock_library
        self._output: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.place / "runs" / "run"

    @property
    def words(self) -> list[str]:
        """The command line."""
        workers = f"2:{WORKERS}" if self._plan.elastic else str(WORKERS)
        script = (
            str(TRAINING),
            f"faulty+file://{self.checkpoints}",
            str(self._files),
            str(self._plan.retries),
            self._plan.kind,
        )
        options = ("--workers", workers, *OPTIONS, "--env", f"{MARK}={self._mark}")
        return [
            *(sys.executable, "-m", "phalanx", "run"),
            *options,
            *command(self._plan.inside, *script),
        ]

    def finish(self) -> int:
        """Run to the end, with the plan's faults.

        Returns:
            The launcher's exit code, 1 after the deadline.
        """
        (self._files / "command.txt").write_text(f"{shlex.join(self.words)}\n{self._plan}\n")
        until = time.monotonic() + DEADLINE
        waiting = list(self._plan.outside)
        self._start()
        while (code := self._launcher.poll()) is None and time.monotonic() < until:
            for fault in [one for one in waiting if self._step() >= one.step]:
                with suppress(NotNowError):  # it is tried again a moment later
                    wrong = fault.inject(self)
                    waiting.remove(fault)
                    self.happened.append(type(fault).__name__)
                    self.wrong += [wrong] if wrong else []
                    break
            time.sleep(0.01)
        if code is None:
            self.wrong.append(f"no end within {DEADLINE:.0f} s")
            self._launcher.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._launcher.wait(120)
            code = 1
        self._close_reader()
        self.wrong += [f"left running: {words}" for words in self._end(self._processes())]
        (self._files / "output.txt").write_text("".join(self._output))
        return code

    def close(self) -> None:
        """Unmount the disk; its files are lost."""
        if self._unmount:
            self._unmount()

    # What a fault does.

    def kill(self) -> None:
        """Kill the launcher by SIGKILL, and wait for the end of all workers."""
        if self._launcher.poll() is not None:
            raise NotNowError
        self._launcher.kill()
        self._launcher.wait()
        self._close_reader()
        until = time.monotonic() + ORPHANS_END
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.05)
        self.wrong += [f"outlived the launcher: {words}" for words in self._end(left)]

    def resume(self) -> None:
        """Start the same command again."""
        self._start()

    def resume_if_rejected(self) -> None:
        """Start the command again if the launcher found that it cannot write."""
        with suppress(subprocess.TimeoutExpired):
            if self._launcher.wait(1) == EXIT_REJECTED:
                self._start()

    def kill_last_worker(self) -> bool:
        """Kill the worker with the highest rank; whether there was one."""
        for process in self._processes():
            with suppress(psutil.Error):
                if f'"rank": {WORKERS - 1}' in process.environ().get("PHALANX_WORKER_SPEC", ""):
                    process.kill()
                    return True
        return False

    def close_output(self) -> None:
        """Close the end of the pipe that reads what the launcher prints."""
        if self._launcher.stdout is None or self._launcher.stdout.closed:
            raise NotNowError
        self._stop_reading.set()
        # The reader ends after its next line; a pipe closes when no thread reads from it.
        if self._reader:
            self._reader.join(5)
        self._launcher.stdout.close()

    def start_second(self) -> int:
        """Run the same command beside it until one of both ends.

        If both started at once and it is the first that was rejected, the second takes its place.

        Returns:
            The exit code of the one that ended.
        """
        first, second = self._launcher, self._popen()
        until = time.monotonic() + SECOND_ENDS
        while first.poll() is None and second.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if first.poll() == EXIT_REJECTED and second.poll() is None:
            self._follow(second)
            return EXIT_REJECTED
        if second.poll() is None and first.poll() is None:
            second.kill()
        second.communicate(timeout=SECOND_ENDS)
        if first.poll() is not None:
            raise NotNowError  # The first one has ended meanwhile: nothing to reject.
        return second.returncode

    def wait_for_steps(self, number: int, seconds: float) -> None:
        """Until so many more steps were trained, the run ended, or that time has passed."""
        until = time.monotonic() + seconds
        first = self._steps_trained()
        while self._steps_trained() < first + number and time.monotonic() < until:
            if self._launcher.poll() is not None:
                return
            time.sleep(0.02)

    # The processes.

    @property
    def _launcher(self) -> subprocess.Popen[str]:
        assert self._process is not None, "started"
        return self._process

    def _environment(self) -> dict[str, str]:
        environment = {name: text for name, text in os.environ.items() if name != "TF_CONFIG"}
        environment |= {MARK: self._mark, "SOAK_PROGRESS": str(self._progress)}
        environment |= {"SOAK_BROKEN": str(self.broken)}
        if self._clock_library:
            environment |= {
                "LD_PRELOAD": str(self._clock_library),
                "PHALANX_TEST_CLOCK": str(self.clock),
            }
        return environment

    def _start(self) -> None:
        self._follow(self._popen())

    def _popen(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words,
            cwd=self.place,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _follow(self, launcher: subprocess.Popen[str]) -> None:
        self._process = launcher
        self._stop_reading = threading.Event()
        self._reader = threading.Thread(
            target=self._read, args=(launcher, self._stop_reading), daemon=True
        )
        self._reader.start()

    def _read(self, process: subprocess.Popen[str], stop: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._output.append(line)
            if stop.is_set():
                return

    def _close_reader(self) -> None:
        if self._reader:
            self._reader.join(10)

    def _step(self) -> int:
        """The step that the chief has completed last, -1 before the first."""
        return self._progress_numbers()[0]

    def _steps_trained(self) -> int:
        """Steps that chiefs have trained, those that were trained again too."""
        return self._progress_numbers()[1]

    def _progress_numbers(self) -> tuple[int, int]:
        with suppress(OSError, ValueError):
            step, trained = self._progress.read_text().split()
            return int(step), int(trained)
        return -1, 0

    def _processes(self) -> list[psutil.Process]:
        """All processes of this run that live, but for the launcher that runs."""
        found = []
        running = self._process.pid if self._process and self._process.poll() is None else None
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get(MARK) == self._mark and process.pid != running
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _end(self, processes: list[psutil.Process]) -> list[str]:
        """Kill them; returns their command lines."""
        words = []
        for process in processes:
            with suppress(psutil.Error):
                words.append(shlex.join(process.cmdline())[:120])
                process.kill()
        return words


def build_clock_library(directory: Path) -> Path | None:
    """Build the library that shifts the wall clock of a process.

    Returns:
        Its file; None without a C compiler.
    """
    made = directory / "wall_clock.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(CLOCK_SOURCE), "-ldl"]
    try:
        finished = subprocess.run([*words, "-lpthread"], capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if finished.returncode else made
