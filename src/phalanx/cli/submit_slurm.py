"""`phalanx submit slurm`: a run as a batch job."""

from __future__ import annotations

from pathlib import Path

import typer

from phalanx.cli.console import info
from phalanx.cli.options_dataclass import takes
from phalanx.cli.submit_options import check_run
from phalanx.launch.script_check import check_module, check_script
from phalanx.submit.job_registry import refuse_taken
from phalanx.submit.slurm_client import submit
from phalanx.submit.slurm_script import SlurmJob, batch_script
from phalanx.submit.subprocess_client import run_command

HELP = """Write a Slurm batch script that starts a launcher on each node, and submit it.

The job saves and stops shortly before its time limit, and is requeued. After the loss of a node \
it resumes from the last checkpoint.

[bold]Examples[/bold]

  phalanx submit slurm --nodes 4 --workers-per-node 2 --time 4:00:00 train.py --epochs 10

  phalanx submit slurm --nodes 2 --gpus-per-node 4 --partition gpu train.py

  phalanx submit slurm --nodes 2 --dry-run train.py
"""


@takes(SlurmJob)
def slurm(job: SlurmJob) -> None:
    """Make the batch script, and hand it to Slurm."""
    if job.as_module:
        check_module(job.target)
    else:
        check_script(Path(job.target))
    check_run(job.run)
    if job.dry_run:
        typer.echo(batch_script(job), nl=False)
        return
    root = Path(job.run.run_dir)
    if not job.resume:
        refuse_taken(job.run.name, root)
    submitted = submit(job, root, run_command)
    info(
        f"run {job.run.name} is job {submitted.job}: phalanx status, logs or cancel {job.run.name}"
    )
