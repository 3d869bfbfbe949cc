"""Which run is meant: one that was named, or the newest."""

from __future__ import annotations

from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.report.run_data import RUN_FILE, read_run_file

_SHOWN = 8


def find_run(name_or_path: str | None, root: Path) -> Path:
    """The directory of a run.

    Args:
        name_or_path: a run's name, or the path of its directory; None takes the newest.
        root: the directory of all runs.

    Raises:
        ConfigurationError: there is no such run; the message names those that there are.
    """
    runs = runs_in(root)
    if name_or_path is None:
        if not runs:
            raise ConfigurationError(
                f"There is no run in {root}. Start one by `phalanx run`, name the directory of "
                "all runs with --run-dir, or give the path of a run."
            )
        return runs[0]
    for path in (root / name_or_path, Path(name_or_path)):
        if is_run(path):
            return path
    names = ", ".join(path.name for path in runs[:_SHOWN]) or "none"
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    raise ConfigurationError(
        f"There is no run {name_or_path!r}, neither in {root} nor as a path. Runs in {root}: "
        f"{names}{more}."
    )


def is_run(path: Path) -> bool:
    """Whether a directory is a run's."""
    return (path / RUN_FILE).is_file() or (path / "records").is_dir()


def runs_in(root: Path) -> list[Path]:
    """All runs in a directory, the newest first."""
    try:
        found = [path for path in root.iterdir() if is_run(path)]
    except OSError:
        return []
    return sorted(found, key=_started, reverse=True)


def _started(path: Path) -> tuple[float, str]:
    started = read_run_file(path).started
    return (path.stat().st_mtime if started is None else started, path.name)
