"""Python's `logging` in a worker: the rank in every record, few words from all but the chief.

A script that sets up `logging` itself, by `basicConfig` or handlers of its own, keeps what it sets
up. What no other process handles is shown here, on standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phalanx.cluster.spec import WorkerSpec

_MOST_REMEMBERED = 10_000
_LIBRARIES = ("tensorflow", "absl")
"""They log much at INFO that users did not ask for."""


def set_up_logging(spec: WorkerSpec) -> None:
    """Set levels and what shows records, once for this process.

    Every record has an attribute `rank`, for formats such as `%(rank)d`. The root logger is at
    the level that `spec` asks for. What Phalanx says of itself is for every worker's log.
    """
    _number_records(spec.rank)
    level = level_of(spec)
    logging.getLogger().setLevel(level)
    logging.getLogger("tensorflow").setLevel(max(level, logging.WARNING))
    logging.lastResort = _handler("%(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("phalanx")
    if not log.handlers:
        log.addHandler(_handler("phalanx: %(message)s"))
        log.setLevel(logging.INFO if spec.log_level == "auto" else level)
        log.propagate = False


@contextmanager
def absl_held_back() -> Iterator[None]:
    """Let absl say no more than warnings, and leave the root logger without a handler of its own.

    absl's first record, shown or not, calls `logging.basicConfig` (absl-py, logging/__init__.py,
    `log`), after which every record of a script would be shown as that has it.
    """
    root, absl = logging.getLogger(), logging.getLogger("absl")
    handlers, level = list(root.handlers), absl.level
    absl.setLevel(logging.WARNING)
    try:
        yield
    finally:
        absl.setLevel(level)
        root.handlers[:] = handlers


def level_of(spec: WorkerSpec) -> int:
    """The level of a worker's root logger, as a number of `logging`."""
    if spec.log_level == "auto":
        return logging.INFO if spec.is_chief else logging.WARNING
    return logging.getLevelNamesMapping()[spec.log_level.upper()]


def _number_records(rank: int) -> None:
    make = logging.getLogRecordFactory()

    def numbered(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        record.rank = rank
        return record

    logging.setLogRecordFactory(numbered)


def _handler(form: str) -> logging.StreamHandler[Any]:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(form))
    handler.addFilter(_Once())
    handler.addFilter(_is_asked_for)
    return handler


def _is_asked_for(record: logging.LogRecord) -> bool:
    library = record.name.split(".")[0] in _LIBRARIES
    return record.levelno >= logging.WARNING or not library


class _Once(logging.Filter):
    """Lets each warning through once: the same words of the same logger."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: set[tuple[str, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        words = (record.name, record.getMessage())
        if words in self._logged:
            return False
        if len(self._logged) < _MOST_REMEMBERED:
            self._logged.add(words)
        return True
