"""`phalanx submit ray`: a run as a job of a Ray cluster."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.cli.run_options import Arguments, AsModule, Resume, Target
from phalanx.cli.submit_options import (
    GracePeriod,
    JobName,
    JobsDir,
    RunOptionsText,
    SharedRunDir,
    check_gpus_per_worker,
    check_run,
)
from phalanx.errors import ConfigurationError
from phalanx.launch.options import GRACE, parse_workers
from phalanx.launch.script_check import check_module, check_script
from phalanx.submit import ray_client
from phalanx.submit.job_registry import refuse_taken
from phalanx.submit.ray_command import RayJob, launcher_words, shell_text
from phalanx.submit.ray_driver.plan import RayPlan
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options

HELP = """Submit a Ray job that starts a launcher with one worker on each placement bundle.

After the loss of a node, the job resumes from the last checkpoint on other nodes, or, with \
--workers MIN:MAX, with fewer workers until resources are available again.

[bold]Examples[/bold]

  phalanx submit ray --address http://head:8265 --workers 4 train.py --epochs 10

  phalanx submit ray --workers 2:4 --gpus-per-worker 1 --cpus-per-worker 8 train.py

  phalanx submit ray --workers 4 --working-dir . --run-dir /shared/runs train.py
"""


def ray(
    target: Target,
    arguments: Arguments = None,
    as_module: AsModule = False,
    address: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Address of Ray's job server; RAY_API_SERVER_ADDRESS takes precedence.",
        ),
    ] = "http://127.0.0.1:8265",
    workers: Annotated[
        str,
        typer.Option(
            metavar="N|MIN:MAX",
            help="Number of workers; with MIN:MAX, as many as fit.",
        ),
    ] = "1",
    cpus_per_worker: Annotated[
        float, typer.Option(metavar="N", help="CPUs of each worker, as Ray counts them.")
    ] = 1.0,
    gpus_per_worker: Annotated[float, typer.Option(metavar="N", help="GPUs of each worker.")] = 0.0,
    working_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory that Ray copies to every node; it contains SCRIPT.",
            show_default="SCRIPT is on all nodes",
        ),
    ] = None,
    name: JobName = None,
    resume: Resume = False,
    run_dir: SharedRunDir = Path("runs"),
    jobs_dir: JobsDir = Path("runs"),
    max_restarts: Annotated[
        int, typer.Option(help="Maximum number of restarts on the same nodes.")
    ] = 0,
    max_node_failures: Annotated[
        int, typer.Option(help="Maximum number of restarts after lost nodes.")
    ] = 10,
    placement_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="With MIN:MAX, time to wait for MAX workers."),
    ] = 60.0,
    grace_period: GracePeriod = int(GRACE),
    run_options: RunOptionsText = "",
    python: Annotated[
        str | None,
        typer.Option(help="Python interpreter on the nodes.", show_default="that of Ray"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job as a command and submit nothing.")
    ] = False,
) -> None:
    """Read the flags, make the job, hand it to Ray."""
    script = (working_dir or Path()) / target
    if not as_module:
        check_script(script)
    elif working_dir is None:
        check_module(target)
    least, most = parse_workers(workers)
    root = run_dir.absolute()
    is_brought = as_module or working_dir is not None
    run = SubmitSpec(
        name=name or name_for(target, datetime.now()),
        target=target if is_brought else str(script.absolute()),
        arguments=tuple(arguments or ()),
        as_module=as_module,
        hosts=most,
        run_dir=str(root),
        max_restarts=max_restarts,
        options=split_options(run_options),
    )
    options = check_run(run)
    if (options.min_workers, options.workers) != (None, most):
        raise ConfigurationError(
            f"--run-options {run_options!r} has --workers, which are bundles of Ray's: give "
            "--workers to phalanx submit ray itself."
        )
    more = f"phalanx submit ray --workers {most * max(1, int(gpus_per_worker))} --gpus-per-worker 1"
    check_gpus_per_worker(gpus_per_worker, options, more)
    plan = RayPlan(
        name=run.name,
        run_dir=run.run_dir,
        words=launcher_words(run, cpus=cpus_per_worker, grace_period=grace_period),
        least=most if least is None else least,
        most=most,
        cpus=cpus_per_worker,
        gpus=gpus_per_worker,
        max_node_failures=max_node_failures,
        placement_timeout=placement_timeout,
        python=python,
        directory=None if working_dir is not None else str(Path.cwd()),
    )
    brought = None if working_dir is None else str(working_dir.absolute())
    job = RayJob(plan=plan, grace_period=grace_period, working_dir=brought)
    if dry_run:
        typer.echo(shell_text(job, address), nl=False)
        return
    if not resume:
        refuse_taken(run.name, root)
    made = ray_client.submit(job, address, jobs_dir, ray_client.connect(address))
    info(f"run {run.name} is job {made.job}: phalanx status, logs or cancel {run.name}")
