"""Run tests and record which of them execute which line, in every process that they start.

    python tests/breaks/contexts.py --data DIR -- -m "not long" -n 2

What stands after `--` is pytest's. `DIR/contexts.db` is then a data file of coverage's in which
each line's contexts are the ids of tests.

This directory is first on PYTHONPATH meanwhile, so each Python that a test starts imports
`sitecustomize`, and that calls `begin`. The id of the running test is in a file: a process that
was started, or forked, by an older one reads it there. (PYTEST_DONT_REWRITE: it is imported
before pytest.)
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DIRECTORY = "PHALANX_CONTEXTS"
"""The environment variable with the directory of the data; measures where it is set."""
TEST = "PHALANX_CONTEXTS_TEST"
"""The environment variable with the file that holds the id of the running test."""
SECONDS = 0.5
"""Between two savings of a process that may be killed at any time."""
SETTINGS = """\
[run]
core = ctrace
include = {root}/src/phalanx/*
parallel = true
data_file = {directory}/raw/data
disable_warnings = no-data-collected, module-not-imported, couldnt-parse, already-imported,
    module-not-measured
"""

_lock = threading.RLock()
_own: Any = None
_test = ""
_is_named_here = threading.Event()


def begin() -> None:
    """Measure this process, and those that it forks."""
    if DIRECTORY not in os.environ:
        return
    os.register_at_fork(
        before=lambda: _lock.acquire(),
        after_in_parent=lambda: _lock.release(),
        after_in_child=_begin_in_fork,
    )
    for name in ("_exit", "execv", "execve"):  # these leave without Python's own end
        setattr(os, name, _saved_first(getattr(os, name)))
    atexit.register(save)
    _measure()


def save() -> None:
    """Write down what was executed so far."""
    if _lock.acquire(timeout=5):
        try:
            _own.save()
        finally:
            _lock.release()


def _measure() -> None:
    global _own
    import coverage

    _own = coverage.Coverage(config_file=str(Path(os.environ[DIRECTORY], "settings")))
    _own.start()
    _name(_running())
    threading.Thread(target=_keep_saving, name="contexts", daemon=True).start()


def _running() -> str:
    """The id of the running test."""
    try:
        return Path(os.environ[TEST]).read_text(encoding="utf-8")
    except (KeyError, OSError):
        return ""


def _name(test: str) -> None:
    """Whatever is executed from now on is this test's."""
    global _test
    with _lock:
        if test != _test:
            _own.switch_context(test)
            _test = test


def _keep_saving() -> None:
    """Servers, and workers of a run that fails, are ended by SIGKILL; some outlive a test."""
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
    while not _is_named_here.wait(SECONDS):
        save()
        _name(_running())


def _begin_in_fork() -> None:
    global _lock, _test
    _lock, _test = threading.RLock(), ""
    _own.stop()
    _measure()
    connections = sys.modules.get("multiprocessing.connection")
    if connections is not None:  # `run_workers` kills a worker as soon as it has reported
        made: Any = connections.Connection
        made.send = _saved_first(made.send)


def _saved_first(function: Callable[..., Any]) -> Callable[..., Any]:
    def after_saving(*args: Any, **kwargs: Any) -> Any:
        save()
        return function(*args, **kwargs)

    return after_saving


def pytest_configure(config: Any) -> None:
    """pytest's hook: this process names the tests, and has a file of its own for that."""
    import tempfile

    _is_named_here.set()
    handle, os.environ[TEST] = tempfile.mkstemp(dir=Path(os.environ[DIRECTORY], "tests"))
    os.close(handle)


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """pytest's hook: a test begins, its fixtures included."""
    Path(os.environ[TEST]).write_text(nodeid, encoding="utf-8")
    _name(nodeid)


def main() -> int:
    """Run pytest with all of this; its exit code."""
    import argparse
    import shutil
    import subprocess

    import coverage

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the directory for the data")
    parser.add_argument("words", nargs="*", help="pytest's arguments, after --")
    requested = parser.parse_args()
    directory = requested.data.resolve()
    for name in ("raw", "tests"):
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / name).mkdir(parents=True)
    settings = directory / "settings"
    settings.write_text(SETTINGS.format(root=ROOT, directory=directory), encoding="utf-8")
    path = os.pathsep.join([str(HERE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, DIRECTORY: str(directory), "PYTHONPATH": path.strip(os.pathsep)}
    command = [sys.executable, "-m", "pytest", "-p", "contexts", *requested.words]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)

    whole = coverage.Coverage(
        config_file=str(settings), data_file=str(directory / "contexts.db"), data_suffix=False
    )
    whole.combine(sorted(map(str, (directory / "raw").iterdir())))
    whole.save()
    print(f"Recorded in {directory / 'contexts.db'}.")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
