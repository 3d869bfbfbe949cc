"""The jobs that were submitted from here: a small file for each beside the runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.errors import ConfigurationError
from phalanx.launcher.run_dir import saved_run
from phalanx.monitoring.durable_files import PRIVATE_FILE, write_durably

ENDING = ".job.json"


@dataclass(frozen=True, kw_only=True)
class SubmittedJob:
    """A job that a cluster has taken.

    Attributes:
        kind: of which cluster: "slurm", "kubernetes" or "ray".
        job: what the cluster calls it.
        name: the run's name.
        log: where the launchers' words go, if that is a file.
        namespace: where it lies in Kubernetes.
        object: what it is there: Job, JobSet, TrainJob or TFJob.
        address: Ray's job server.
    """

    kind: str
    job: str
    name: str
    log: str | None = None
    namespace: str | None = None
    object: str | None = None
    address: str | None = None

    def write(self, run_dir: Path) -> None:
        """Keep it beside the runs."""
        run_dir.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=2) + "\n"
        write_durably(run_dir / f"{self.name}{ENDING}", text, mode=PRIVATE_FILE)


def refuse_taken(name: str, run_dir: Path) -> None:
    """Refuse a name under which a run lies already that is not to be resumed.

    Raises:
        ConfigurationError: there is one, and it did not save and stop.
    """
    path = run_dir / name
    if path.is_dir() and any(path.iterdir()) and saved_run(path) is None:
        raise ConfigurationError(
            f"There is a run in {path} already. Give another --name, or --resume it."
        )


def find_job(requested: str, run_dir: Path) -> SubmittedJob:
    """The job of a name, or with what the cluster calls it.

    Raises:
        ConfigurationError: none was submitted from here.
    """
    known = [_read(path) for path in sorted(run_dir.glob(f"*{ENDING}"))]
    for job in filter(None, known):
        if requested in (job.name, job.job):
            return job
    names = ", ".join(job.name for job in known if job is not None) or "none"
    raise ConfigurationError(
        f"There is no job {requested!r} that was submitted with --run-dir {run_dir}; there are: "
        f"{names}. Name the --run-dir it was submitted with."
    )


def _read(path: Path) -> SubmittedJob | None:
    try:
        return SubmittedJob(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
