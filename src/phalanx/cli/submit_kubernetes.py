"""`phalanx submit kubernetes`: a run as an Indexed Job."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from phalanx.cli.console import info
from phalanx.cli.run_options import Arguments
from phalanx.cli.submit_options import (
    GracePeriod,
    JobsDir,
    RunOptionsText,
    check_gpus_per_worker,
    check_run,
)
from phalanx.errors import ConfigurationError
from phalanx.launch.options import GRACE, parse_env
from phalanx.launch.script_check import check_script
from phalanx.submit import kubernetes_client
from phalanx.submit.job_registry import SubmittedJob
from phalanx.submit.kubernetes import CODE_DIR, KINDS, KubernetesJob, manifests
from phalanx.submit.manifests import to_yaml
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options

HELP = """Create an Indexed Job with a launcher in each pod, and a headless Service.

A ConfigMap carries SCRIPT; with --code-source image, SCRIPT is a path in the image.

[bold]Examples[/bold]

  phalanx submit kubernetes --workers 4 --image IMAGE --pvc PVC train.py --epochs 10

  phalanx submit kubernetes --workers 2 --gpus-per-worker 1 --image IMAGE --pvc PVC \
--code-source image /app/train.py

  phalanx submit kubernetes --workers 4 --image IMAGE --pvc PVC --dry-run train.py
"""
CODES = ("configmap", "image")


def kubernetes(
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script to run.")],
    arguments: Arguments = None,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Number of pods, one worker in each.")
    ] = 1,
    image: Annotated[
        str, typer.Option(help="Image of the pods; it contains Phalanx.", show_default=False)
    ] = "",
    pvc: Annotated[
        str | None,
        typer.Option(help="PersistentVolumeClaim for --run-dir, writable by all pods."),
    ] = None,
    code_source: Annotated[
        str, typer.Option(metavar="|".join(CODES), help="Source of the script.")
    ] = "configmap",
    kind: Annotated[
        str,
        typer.Option(
            metavar="|".join(KINDS), help="Kind of object; all except job need an operator."
        ),
    ] = "job",
    gpus_per_worker: Annotated[int, typer.Option(metavar="N", help="GPUs of each pod.")] = 0,
    cpus_per_worker: Annotated[
        str | None, typer.Option(metavar="N", help="CPUs of each pod: 2, 500m.")
    ] = None,
    memory_per_worker: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each pod: 8Gi.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the job.", show_default="the client's")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the run and of the Job.", show_default="the script and the time"
        ),
    ] = None,
    run_dir: Annotated[
        str, typer.Option(help="Directory that holds all runs, in the pods.")
    ] = "/runs",
    jobs_dir: JobsDir = Path("runs"),
    max_restarts: Annotated[
        int, typer.Option(help="Maximum number of restarts inside the pods.")
    ] = 0,
    backoff_limit: Annotated[
        int, typer.Option(help="Replacements of a pod of each index after failures.")
    ] = 3,
    grace_period: GracePeriod = int(GRACE),
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Environment variable for the pods (repeatable)."),
    ] = None,
    node_selector: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Node selector label (repeatable)."),
    ] = None,
    run_options: RunOptionsText = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print YAML for kubectl apply and create nothing.")
    ] = False,
) -> None:
    """Read the flags, make the objects, hand them to Kubernetes."""
    if not image:
        raise ConfigurationError("Pods need an image with Phalanx in it: give --image.")
    if code_source not in CODES:
        raise ConfigurationError(
            f"--code-source must be one of {', '.join(CODES)}; found {code_source!r}."
        )
    script = _text_of(target) if code_source == "configmap" else None
    run = SubmitSpec(
        name=name or name_for(target, datetime.now()),
        target=target if script is None else f"{CODE_DIR}/{Path(target).name}",
        arguments=tuple(arguments or ()),
        hosts=workers,
        workers_per_host=1,
        run_dir=run_dir,
        max_restarts=max_restarts,
        options=split_options(run_options),
    )
    more = f"phalanx submit kubernetes --workers {workers * gpus_per_worker} --gpus-per-worker 1"
    check_gpus_per_worker(gpus_per_worker, check_run(run), more)
    job = KubernetesJob(
        run=run,
        image=image,
        kind=kind,
        pvc=pvc,
        script=script,
        gpus=gpus_per_worker,
        cpus=cpus_per_worker,
        memory=memory_per_worker,
        namespace=namespace,
        grace_period=grace_period,
        backoff_limit=backoff_limit,
        env=parse_env(env or []),
        node_selector=_labels(node_selector or []),
    )
    objects = manifests(job)
    if dry_run:
        typer.echo(to_yaml(objects), nl=False)
        return
    client = kubernetes_client.connect()
    place = kubernetes_client.namespace_of(namespace, client)
    kubernetes_client.apply(objects, place, client)
    made = str(objects[-1]["kind"])
    SubmittedJob(
        kind="kubernetes", job=run.name, name=run.name, namespace=place, object=made
    ).write(jobs_dir)
    info(f"made {made} {run.name} in {place}: phalanx status, logs or cancel {run.name}")


def _text_of(target: str) -> str:
    check_script(Path(target))
    return Path(target).read_text(encoding="utf-8")


def _labels(items: list[str]) -> dict[str, str] | None:
    """Labels may hold what names of variables may not."""
    pairs = [item.partition("=") for item in items]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise ConfigurationError(f"--node-selector must be LABEL=VALUE; found {name!r}.")
    return {name: value for name, _, value in pairs} or None
