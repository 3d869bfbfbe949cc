"""`phalanx submit slurm`: a run as a batch job."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.cli.run_options import Arguments, AsModule, MaxRestarts, Resume, Target
from phalanx.cli.submit_options import GracePeriod, JobName, RunOptionsText, SharedRunDir, check_run
from phalanx.launch.options import GRACE, without_env
from phalanx.launch.script_check import check_module, check_script
from phalanx.submit.job_registry import refuse_taken
from phalanx.submit.slurm_client import submit
from phalanx.submit.slurm_script import SlurmJob, batch_script
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options
from phalanx.submit.subprocess_client import run_command

HELP = """Write a Slurm batch script that starts a launcher on each node, and submit it.

The job saves and stops shortly before its time limit, and is requeued. After the loss of a node \
it resumes from the last checkpoint.

[bold]Examples[/bold]

  phalanx submit slurm --nodes 4 --workers-per-node 2 --time 4:00:00 train.py --epochs 10

  phalanx submit slurm --nodes 2 --gpus-per-node 4 --partition gpu train.py

  phalanx submit slurm --nodes 2 --dry-run train.py
"""


def slurm(
    target: Target,
    arguments: Arguments = None,
    as_module: AsModule = False,
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes.")] = 1,
    workers_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Workers on each node.", show_default="one for each GPU there, else 1"
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs on each node.", show_default="none")
    ] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cores on each node.", show_default="one for each worker"),
    ] = None,
    mem: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each node: 16G.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time limit, in a format of sbatch.",
            show_default="the partition's",
        ),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account to charge.")] = None,
    sbatch_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="Further option of sbatch (repeatable)."),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE", help="Line to run before the launcher: 'module load cuda' (repeatable)."
        ),
    ] = None,
    name: JobName = None,
    resume: Resume = False,
    run_dir: SharedRunDir = Path("runs"),
    max_restarts: MaxRestarts = 0,
    grace_period: GracePeriod = int(GRACE),
    run_options: RunOptionsText = "",
    python: Annotated[
        str, typer.Option(help="Python interpreter on the nodes.", show_default="this one")
    ] = sys.executable,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script and submit nothing.")
    ] = False,
) -> None:
    """Read the flags, write the batch script, submit it."""
    if as_module:
        check_module(target)
    else:
        check_script(Path(target))
    root = run_dir.absolute()
    run = SubmitSpec(
        name=name or name_for(target, datetime.now()),
        target=target if as_module else str(Path(target).absolute()),
        arguments=tuple(arguments or ()),
        as_module=as_module,
        hosts=nodes,
        workers_per_host=workers_per_node,
        run_dir=str(root),
        max_restarts=max_restarts,
        options=split_options(run_options),
    )
    env = check_run(run).env
    job = SlurmJob(
        run=replace(run, options=tuple(without_env(run.options))),
        env=env,
        python=python,
        output=str(root / f"{run.name}.log"),
        gpus_per_node=gpus_per_node,
        cpus_per_node=cpus_per_node,
        memory=mem,
        time=time,
        partition=partition,
        account=account,
        directives=tuple(sbatch_arg or ()),
        grace_period=grace_period,
        modules=tuple(setup or ()),
    )
    if dry_run:
        typer.echo(batch_script(job), nl=False)
        return
    if not resume:
        refuse_taken(run.name, root)
    submitted = submit(job, root, run_command)
    info(f"run {run.name} is job {submitted.job}: phalanx status, logs or cancel {run.name}")
