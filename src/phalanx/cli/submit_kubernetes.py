"""`phalanx submit kubernetes`: a run as an Indexed Job."""

from __future__ import annotations

import typer

from phalanx.cli.console import info
from phalanx.cli.options_dataclass import takes
from phalanx.cli.submit_options import check_gpus_per_worker, check_run
from phalanx.submit import kubernetes_client
from phalanx.submit.job_registry import SubmittedJob
from phalanx.submit.kubernetes import KubernetesJob, manifests
from phalanx.submit.manifests import to_yaml

HELP = """Create an Indexed Job with a launcher in each pod, and a headless Service.

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
