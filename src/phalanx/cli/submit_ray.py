"""`phalanx submit ray`: a run as a job of a Ray cluster."""

from __future__ import annotations

from pathlib import Path

import typer

from phalanx.cli.console import info
from phalanx.cli.options_dataclass import takes
from phalanx.cli.submit_options import check_gpus_per_worker, check_run
from phalanx.errors import ConfigurationError
from phalanx.launch.script_check import check_module, check_script
from phalanx.submit import ray_client
from phalanx.submit.job_registry import refuse_taken
from phalanx.submit.ray_command import RayJob, shell_text

HELP = """Submit a Ray job that starts a launcher with one worker on each placement bundle.

After the loss of a node, the job resumes from the last checkpoint on other nodes, or, with \
--workers MIN:MAX, with fewer workers until resources are available again.

[bold]Examples[/bold]

  phalanx submit ray --address http://head:8265 --workers 4 train.py --epochs 10

  phalanx submit ray --workers 2:4 --gpus-per-worker 1 --cpus-per-worker 8 train.py

  phalanx submit ray --workers 4 --working-dir . --run-dir /shared/runs train.py
"""


@takes(RayJob)
def ray(job: RayJob) -> None:
    """Make the job, and hand it to Ray."""
    if not job.as_module:
        check_script(job.script)
    elif job.working_dir is None:
        check_module(job.target)
    run, gpus = job.run, job.gpus_per_worker
    options = check_run(run)
    if (options.min_workers, options.workers) != (None, run.hosts):
        raise ConfigurationError(
            f"--run-options {run.shown_options!r} has --workers, which are bundles of Ray's: give "
            "--workers to phalanx submit ray itself."
        )
    more = f"phalanx submit ray --workers {run.hosts * max(1, int(gpus))} --gpus-per-worker 1"
    check_gpus_per_worker(gpus, options, more)
    if job.dry_run:
        typer.echo(shell_text(job), nl=False)
        return
    if not job.resume:
        refuse_taken(run.name, Path(run.run_dir))
    made = ray_client.submit(job, ray_client.connect(job.address))
    info(f"run {run.name} is job {made.job}: phalanx status, logs or cancel {run.name}")
