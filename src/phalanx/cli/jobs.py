"""`phalanx status`, `logs` and `cancel`: a job that `phalanx submit` has handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.say import say
from phalanx.errors import OptionError
from phalanx.launch.submit import kubectl, ray_jobs, sbatch
from phalanx.launch.submit.jobs import Submitted, find_job
from phalanx.launch.submit.outside import call

STATUS_HELP = """Say how a submitted job is: waiting, running, ended.

[bold]Example[/bold]

  phalanx status mnist
"""
LOGS_HELP = """Print what the launchers of a submitted job have said.

Each worker's own log is in the run's directory.

[bold]Example[/bold]

  phalanx logs mnist
"""
CANCEL_HELP = """End a submitted job.

[bold]Example[/bold]

  phalanx cancel mnist
"""

Job = Annotated[str, typer.Argument(metavar="JOB", help="The run's name, or the cluster's number.")]
RunDir = Annotated[Path, typer.Option(help="Where the job was noted when it was submitted.")]


def status(job: Job, run_dir: RunDir = Path("runs")) -> None:
    """Ask the cluster."""
    found = find_job(job, run_dir)
    match found.kind:
        case "slurm":
            said = sbatch.status(found, call)
        case "ray":
            said = ray_jobs.status(found, ray_jobs.connect(str(found.address)))
        case _:
            said = kubectl.status(found, kubectl.connect())
    typer.echo(said)


def logs(
    job: Job,
    run_dir: RunDir = Path("runs"),
    pod: Annotated[int, typer.Option(help="Which pod, under Kubernetes.")] = 0,
) -> None:
    """Print the file, or what the cluster keeps."""
    found = find_job(job, run_dir)
    match found.kind:
        case "slurm":
            said = _log_of(found)
        case "ray":
            said = ray_jobs.logs(found, ray_jobs.connect(str(found.address)))
        case _:
            said = kubectl.logs(found, pod, kubectl.connect())
    typer.echo(said, nl=False)


def cancel(job: Job, run_dir: RunDir = Path("runs")) -> None:
    """Tell the cluster."""
    found = find_job(job, run_dir)
    match found.kind:
        case "slurm":
            sbatch.cancel(found, call)
        case "ray":
            ray_jobs.cancel(found, ray_jobs.connect(str(found.address)))
        case _:
            kubectl.cancel(found, kubectl.connect())
    say(f"cancelled {found.name}")


def _log_of(job: Submitted) -> str:
    path = Path(str(job.log))
    if not path.exists():
        raise OptionError(f"Job {job.job} has said nothing yet: there is no {path}.")
    return path.read_text(encoding="utf-8", errors="replace")
