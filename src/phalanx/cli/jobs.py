"""`phalanx status`, `logs` and `cancel`: a job that `phalanx submit` has handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.errors import ConfigurationError
from phalanx.submit import kubernetes_client, ray_client, slurm_client
from phalanx.submit.job_registry import SubmittedJob, find_job
from phalanx.submit.subprocess_client import run_command

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

Job = Annotated[
    str, typer.Argument(metavar="JOB", help="Name of the run, or the cluster's job number.")
]
RunDir = Annotated[
    Path,
    typer.Option(help="Directory of the job's record: --run-dir of submit slurm, else --jobs-dir."),
]


def status(job: Job, run_dir: RunDir = Path("runs")) -> None:
    """Ask the cluster."""
    found = find_job(job, run_dir)
    match found.kind:
        case "slurm":
            states = slurm_client.status(found, run_command)
        case "ray":
            states = ray_client.status(found, ray_client.connect(str(found.address)))
        case _:
            states = kubernetes_client.status(found, kubernetes_client.connect())
    typer.echo(states)


def logs(
    job: Job,
    run_dir: RunDir = Path("runs"),
    pod: Annotated[int, typer.Option(help="Index of the pod, with Kubernetes.")] = 0,
) -> None:
    """Print the file, or what the cluster keeps."""
    found = find_job(job, run_dir)
    match found.kind:
        case "slurm":
            states = _log_of(found)
        case "ray":
            states = ray_client.logs(found, ray_client.connect(str(found.address)))
        case _:
            states = kubernetes_client.logs(found, pod, kubernetes_client.connect())
    typer.echo(states, nl=False)


def cancel(job: Job, run_dir: RunDir = Path("runs")) -> None:
    """Cancel the job in the cluster."""
    found = find_job(job, run_dir)
    match found.kind:
        case "slurm":
            slurm_client.cancel(found, run_command)
        case "ray":
            ray_client.cancel(found, ray_client.connect(str(found.address)))
        case _:
            for line in kubernetes_client.cancel(found, kubernetes_client.connect()):
                info(line)
    info(f"cancelled {found.name}")


def _log_of(job: SubmittedJob) -> str:
    path = Path(str(job.log))
    if not path.exists():
        raise ConfigurationError(f"Job {job.job} has said nothing yet: there is no {path}.")
    return path.read_text(encoding="utf-8", errors="replace")
