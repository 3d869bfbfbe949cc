"""`phalanx submit`: submits a run to Slurm, Kubernetes or Ray."""

from __future__ import annotations

from pathlib import Path

import typer

from phalanx.cli.console import info
from phalanx.cli.options_dataclass import takes
from phalanx.cli.submit_options import check_gpus_per_worker, check_run
from phalanx.errors import ConfigurationError
from phalanx.launcher.script_check import check_module, check_script
from phalanx.submit import kubernetes_client, ray_client
from phalanx.submit.job_registry import SubmittedJob, refuse_taken
from phalanx.submit.kubernetes import KubernetesJob, manifests
from phalanx.submit.manifests import to_yaml
from phalanx.submit.ray_command import RayJob, shell_text
from phalanx.submit.slurm_client import submit
from phalanx.submit.slurm_script import SlurmJob, batch_script
from phalanx.submit.subprocess_client import run_command

SLURM_HELP = """Write a Slurm batch script that starts a launcher on each node, and submit it.

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


KUBERNETES_HELP = """Create an Indexed Job with a launcher in each pod, and a headless Service.

A ConfigMap carries SCRIPT; with --code-source image, SCRIPT is a path in the image.

[bold]Examples[/bold]

  phalanx submit kubernetes --workers 4 --image IMAGE --pvc PVC train.py --epochs 10

  phalanx submit kubernetes --workers 2 --gpus-per-worker 1 --image IMAGE --pvc PVC \
--code-source image /app/train.py

  phalanx submit kubernetes --workers 4 --image IMAGE --pvc PVC --dry-run train.py
"""


@takes(KubernetesJob)
def kubernetes(job: KubernetesJob) -> None:
    """Make the objects, and hand them to Kubernetes."""
    gpus = job.workers * job.gpus_per_worker
    more = f"phalanx submit kubernetes --workers {gpus} --gpus-per-worker 1"
    check_gpus_per_worker(job.gpus_per_worker, check_run(job.run), more)
    objects = manifests(job)
    if job.dry_run:
        typer.echo(to_yaml(objects), nl=False)
        return
    client = kubernetes_client.connect()
    place = kubernetes_client.namespace_of(job.namespace, client)
    kubernetes_client.apply(objects, place, client)
    name, made = job.run.name, str(objects[-1]["kind"])
    SubmittedJob(kind="kubernetes", job=name, name=name, namespace=place, object=made).write(
        job.jobs_dir
    )
    info(f"made {made} {name} in {place}: phalanx status, logs or cancel {name}")


RAY_HELP = """Submit a Ray job that starts a launcher with one worker on each placement bundle.

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


HELP = """Submit a run to a cluster, which starts a launcher on every node.

[bold]Examples[/bold]

  phalanx submit slurm --nodes 4 --workers-per-node 2 train.py

  phalanx submit kubernetes --workers 4 --image IMAGE --pvc PVC train.py

  phalanx submit ray --address http://head:8265 --workers 4 train.py
"""

app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="rich")
SETTINGS = {"allow_interspersed_args": False}  # what follows the script is the script's own
app.command("slurm", help=SLURM_HELP, context_settings=SETTINGS)(slurm)
app.command("kubernetes", help=KUBERNETES_HELP, context_settings=SETTINGS)(kubernetes)
app.command("ray", help=RAY_HELP, context_settings=SETTINGS)(ray)
