"""What all workers write to one path is written once: by the chief, while the others wait for it.

There is no collective in it, so a worker may write alone. The chief notes in the attempt's
directory what it begins to write and what it has written. A worker that is to write the same path,
for the same time, returns when the chief has written it. Where the chief does not come, the path is
this worker's own, and it writes on its own.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from phalanx.cluster.spec import WorkerSpec
from phalanx.launcher.run_layout import AttemptPaths

_T = TypeVar("_T")

TIMEOUT = 10.0
"""Seconds to wait for a chief that has written less often than this worker."""

TIMEOUT_ELSEWHERE = 2.0
"""Seconds to wait for a chief that has been as busy, but with other paths."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1


class WrittenOnce:
    """One worker's part in it.

    Args:
        paths: the attempt's directory, which all workers share.
        is_chief: whether this worker is the one that writes.
        clock: seconds, increasing.
        sleep: lets seconds pass.
    """

    def __init__(
        self,
        paths: AttemptPaths,
        *,
        is_chief: bool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._paths = paths
        self._is_chief = is_chief
        self._clock = clock
        self._sleep = sleep
        self._guard = threading.Lock()
        self._read_to = 0
        self._started: Counter[tuple[str, str]] = Counter()
        self._ended: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
        self._chiefs_calls: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._turns: Counter[tuple[str, str]] = Counter()
        self._by_itself: set[tuple[str, str]] = set()
        self._apart: set[str] = set()

    def write(self, kind: str, path: str, write: Callable[[], _T], instead: Callable[[], _T]) -> _T:
        """What `write` gives on the worker that writes; what `instead` gives on the others.

        Args:
            kind: what is written, so that different things in one place are distinguished.
            path: where to.
            write: writes it.
            instead: called once the chief has written it.
        """
        path = path if "://" in path else os.path.abspath(path)
        if self._is_chief:
            return self._write_as_chief(kind, path, write)
        if self._chief_writes(kind, path):
            return instead()
        with self._lock(path):
            return write()

    def _write_as_chief(self, kind: str, path: str, write: Callable[[], _T]) -> _T:
        self._note("started", kind, path)
        try:
            with self._lock(path):
                result = write()
        except BaseException:
            # The others then try for themselves, and fail as this one did.
            self._note("failed", kind, path)
            raise
        self._note("written", kind, path)
        return result

    def _chief_writes(self, kind: str, path: str) -> bool:
        """Whether the chief has written this path, for the time that it is this worker's turn."""
        key, folder = (kind, path), os.path.dirname(path)
        with self._guard:
            self._calls[kind] += 1
            self._turns[key] += 1
            turn, calls = self._turns[key], self._calls[kind]
        started, pause = self._clock(), _FIRST_PAUSE
        while True:
            with self._guard:
                self._read()
                if len(self._ended[key]) >= turn:
                    return self._ended[key][turn - 1]
                waited = self._clock() - started
                if self._started[key] < turn and waited >= self._timeout(kind, folder, calls):
                    self._by_itself.add(key)
                    self._apart.add(folder)
                    return False
            self._sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _timeout(self, kind: str, folder: str, calls: int) -> float:
        if folder in self._apart:
            return 0.0
        return TIMEOUT if self._chiefs_calls[kind] < calls else TIMEOUT_ELSEWHERE

    @property
    def _journal(self) -> Path:
        return self._paths.directory / "written-by-chief.jsonl"

    def _note(self, what: str, kind: str, path: str) -> None:
        line = json.dumps({"what": what, "kind": kind, "path": path})
        with self._guard, self._journal.open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")

    def _read(self) -> None:
        """Take in the lines that the chief has added, whole ones only."""
        try:
            with self._journal.open("rb") as stream:
                stream.seek(self._read_to)
                added = stream.read()
        except FileNotFoundError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for line in whole.splitlines():
            self._take_in(json.loads(line))

    def _take_in(self, note: dict[str, Any]) -> None:
        key = (note["kind"], note["path"])
        if note["what"] != "started":
            self._ended[key].append(note["what"] == "written")
            return
        self._started[key] += 1
        self._chiefs_calls[note["kind"]] += 1
        if key in self._by_itself:  # it came after all
            self._apart.discard(os.path.dirname(note["path"]))

    def _lock(self, path: str) -> FileLock:
        """Keeps a worker that writes on its own and a chief that came late apart."""
        name = sha256(os.path.dirname(path).encode()).hexdigest()[:16]
        return FileLock(self._paths.directory / f"writing-{name}.lock")


_current: dict[tuple[str, int, int], WrittenOnce] = {}
_thread = threading.local()


def write_once(kind: str, path: str, write: Callable[[], _T], instead: Callable[[], _T]) -> _T:
    """See `WrittenOnce.write`; without other workers, and within another write, just `write`."""
    spec = WorkerSpec.from_environment(os.environ)
    if spec is None or spec.run_dir is None or not spec.shares_script:
        return write()
    if getattr(_thread, "writes", False):
        return write()
    place = (spec.run_dir, spec.attempt, spec.rank)
    if place not in _current:
        paths = AttemptPaths(run=Path(spec.run_dir), attempt=spec.attempt)
        _current[place] = WrittenOnce(paths, is_chief=spec.is_chief)
    with written_by_all_workers():
        return _current[place].write(kind, path, write, instead)


@contextmanager
def written_by_all_workers() -> Iterator[None]:
    """What this thread writes in the block is this worker's own business."""
    before = getattr(_thread, "writes", False)
    _thread.writes = True
    try:
        yield
    finally:
        _thread.writes = before
