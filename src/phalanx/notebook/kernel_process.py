"""Starts the launcher from a kernel, shows its output, and ends it with the cell."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import site
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

import phalanx
from phalanx.errors import LaunchError
from phalanx.launcher.parent_death import tied_to_this_process
from phalanx.notebook.cell_output import CellOutput
from phalanx.notebook.launcher import MODULE, LauncherOutcome, LauncherRequest

WIDTH = 200
"""Columns of the terminal that the launcher sees. A front end wraps longer lines itself."""

INTERRUPT_SECONDS = 4.0
"""Until the launcher is killed after an interrupt. It gives workers 3 seconds to end."""


def run_launcher(request: LauncherRequest, output: CellOutput) -> LauncherOutcome:
    """Start the launcher and wait for its end.

    It is a new process with a terminal of its own for its output, so it shows the progress bar, and
    in a session of its own, so an interrupt of the kernel reaches it from here only, once. Should
    the kernel be killed, the launcher and the workers end as well.

    Raises:
        LaunchError: the launcher ended without an outcome.
        KeyboardInterrupt: the cell was interrupted; no worker is left.
    """
    reading, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (50, WIDTH))
    environment = launcher_environment(os.environ)
    if request.command.debug:
        environment.setdefault("PYTHONBREAKPOINT", "0")  # A debugger could not read from a cell.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(terminal)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(pickle.dumps(request))
        _show(process, reading, process.stderr.fileno(), output, float("inf"))
        process.wait()
    except BaseException:
        _interrupt(process, reading, output)
        raise
    finally:
        output.close()
        os.close(reading)
        process.stderr.close()
    try:
        outcome: LauncherOutcome = pickle.loads(request.outcome.read_bytes())
    except FileNotFoundError as error:
        raise LaunchError(
            f"The launcher ended with exit code {process.returncode} and no result. What it "
            "printed is above; if it printed nothing, look for a lack of memory."
        ) from error
    return outcome


def launcher_environment(kernel: Mapping[str, str]) -> dict[str, str]:
    """The environment of the launcher: the kernel's, without what is for the kernel alone.

    Args:
        kernel: the environment of the kernel.
    """
    environment = tied_to_this_process(kernel)
    for name in ("COLUMNS", "LINES", "JPY_PARENT_PID", "JPY_SESSION_NAME"):
        environment.pop(name, None)
    if environment.get("MPLBACKEND", "").startswith("module://"):
        environment["MPLBACKEND"] = "Agg"  # IPython's draws in a kernel only.
    installed = str(distribution("phalanx").locate_file(""))
    if installed not in (*site.getsitepackages(), site.getusersitepackages()):
        # The notebook has found it through `sys.path`, as after `pip install --target`.
        home = str(Path(phalanx.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [home, environment.get("PYTHONPATH")])
        )
    return environment


def _show(
    process: subprocess.Popen[bytes], stdout: int, stderr: int, output: CellOutput, until: float
) -> None:
    """Show what the launcher prints until it closes both streams, or until that moment."""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ, 0)
        selector.register(stderr, selectors.EVENT_READ, 1)
        while selector.get_map() and time.monotonic() < until:
            left = until - time.monotonic()
            for key, _ in selector.select(None if left == float("inf") else max(0.0, left)):
                try:
                    chunk = os.read(key.fd, 1 << 16)
                except OSError:  # EIO: a terminal whose other end is closed.
                    chunk = b""
                if chunk:
                    output.feed(key.data, chunk)
                else:
                    selector.unregister(key.fd)


def _interrupt(process: subprocess.Popen[bytes], stdout: int, output: CellOutput) -> None:
    """End the launcher, which ends the workers; a second interrupt kills both at once."""
    assert process.stderr is not None
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            until = time.monotonic() + INTERRUPT_SECONDS
            _show(process, stdout, process.stderr.fileno(), output, until)
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
    finally:
        process.kill()  # No error if it has ended. The workers end with it.
        process.wait()
