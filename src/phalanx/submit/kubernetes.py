"""A run as objects for Kubernetes: what was asked for, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from phalanx.cluster.environments.kubernetes import JOB, POD_HOST, POD_OF_INDEX, PODS
from phalanx.errors import ConfigurationError
from phalanx.launcher.env_file import collect_env
from phalanx.launcher.options import GRACE, split_env
from phalanx.launcher.script_check import check_script
from phalanx.launcher.shared_options import Arguments, Env, EnvFrom, choice_option
from phalanx.submit.manifests import Manifest, render
from phalanx.submit.shared_options import GracePeriod, JobsDir, RunOptionsText
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options

CODES = ("configmap", "image")
CODE_DIR = "/phalanx/code"
RENDEZVOUS_TIMEOUT = 1800
"""Seconds for all pods to start: they may wait for free nodes, for new nodes, and for the image."""
CONTAINERS = {"job": "phalanx", "jobset": "phalanx", "trainjob": "node", "tfjob": "tensorflow"}
"""The container of each kind of object; Kubeflow's operators look for theirs by this name."""
KINDS = tuple(CONTAINERS)
REPLICATED = {"jobset": "all", "trainjob": "node"}
"""The Job in a JobSet, and in the one that Kubeflow's trainer makes."""
LABEL_LETTERS = 63
MOST_BYTES = 900_000
"""A ConfigMap holds 1 MiB with all that is around it."""


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """What `phalanx submit kubernetes` is asked for: each field is an option.

    Raises:
        ConfigurationError: one of them cannot work.
    """

    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="The script to run.")]
    arguments: Arguments = None
    workers: Annotated[
        int, typer.Option(metavar="N", help="Number of pods, one worker in each.")
    ] = 1
    image: Annotated[
        str, typer.Option(help="Image of the pods; it contains Phalanx.", show_default=False)
    ] = ""
    pvc: Annotated[
        str | None,
        typer.Option(help="PersistentVolumeClaim for --run-dir, writable by all pods."),
    ] = None
    code_source: Annotated[str, choice_option(CODES, help="Source of the script.")] = "configmap"
    kind: Annotated[
        str,
        choice_option(KINDS, help="Kind of object; all except job need an operator."),
    ] = "job"
    gpus_per_worker: Annotated[int, typer.Option(metavar="N", help="GPUs of each pod.")] = 0
    cpus_per_worker: Annotated[
        str | None, typer.Option(metavar="N", help="CPUs of each pod: 2, 500m.")
    ] = None
    memory_per_worker: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each pod: 8Gi.")
    ] = None
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the job.", show_default="the client's")
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the run and of the Job.", show_default="the script and the time"
        ),
    ] = None
    run_dir: Annotated[str, typer.Option(help="Directory that holds all runs, in the pods.")] = (
        "/runs"
    )
    jobs_dir: JobsDir = Path("runs")
    max_restarts: Annotated[
        int, typer.Option(help="Maximum number of restarts inside the pods.")
    ] = 0
    backoff_limit: Annotated[
        int, typer.Option(help="Replacements of a pod of each index after failures.")
    ] = 3
    grace_period: GracePeriod = int(GRACE)
    env: Env = None
    env_from: EnvFrom = None
    network_policy: Annotated[
        bool,
        typer.Option(help="Create a NetworkPolicy: only the pods of the run reach each other."),
    ] = True
    node_selector: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Node selector label (repeatable)."),
    ] = None
    run_options: RunOptionsText = ""
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print YAML for kubectl apply and create nothing.")
    ] = False

    def __post_init__(self) -> None:
        if not self.image:
            raise ConfigurationError("Pods need an image with Phalanx in it: give --image.")
        if self.code_source not in CODES:
            raise ConfigurationError(
                f"--code-source must be one of {', '.join(CODES)}; found {self.code_source!r}."
            )
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"--kind must be one of {', '.join(KINDS)}; found {self.kind!r}."
            )
        if self.pvc is None and self.workers > 1:
            raise ConfigurationError(
                f"{self.workers} pods need a directory of runs that they share: give --pvc "
                "with a PersistentVolumeClaim that many nodes can write (ReadWriteMany)."
            )
        if not PurePosixPath(self.run_dir).is_absolute():
            raise ConfigurationError(
                f"--run-dir must be an absolute path in the pods; found {self.run_dir!r}."
            )
        size = len((self.script or "").encode())
        if size > MOST_BYTES:
            raise ConfigurationError(
                f"A ConfigMap takes a script of {MOST_BYTES} bytes; found {size}. Put the code "
                "into the image, and give --code-source image."
            )
        if self.gpus_per_worker < 0 or self.backoff_limit < 0 or self.grace_period < 1:
            raise ConfigurationError(
                "--gpus-per-worker and --backoff-limit must be 0 or more, --grace-period 1 or "
                f"more; found {self.gpus_per_worker}, {self.backoff_limit} and {self.grace_period}."
            )
        if (letters := _letters_of_pods(self)) > LABEL_LETTERS:
            raise ConfigurationError(
                f"--kind {self.kind} calls pods after the run, in at most {LABEL_LETTERS} letters; "
                f"found {letters} with --name {self.run.name}. Give a --name that is "
                f"{letters - LABEL_LETTERS} shorter."
            )

    @cached_property
    def script(self) -> str | None:
        """The text of the script, for a ConfigMap; None where the image has it."""
        if self.code_source == "image":
            return None
        check_script(Path(self.target))
        try:
            return Path(self.target).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"A ConfigMap holds text in UTF-8, and {self.target} has another encoding "
                f"({error}). Save the script as UTF-8, or give --code-source image."
            ) from error

    @cached_property
    def run(self) -> SubmitSpec:
        """The run; its script is where the pods find it."""
        in_config_map = f"{CODE_DIR}/{Path(self.target).name}"
        return SubmitSpec(
            name=self.name or name_for(self.target, datetime.now()),
            target=self.target if self.script is None else in_config_map,
            arguments=tuple(self.arguments or ()),
            hosts=self.workers,
            workers_per_host=1,
            run_dir=self.run_dir,
            max_restarts=self.max_restarts,
            options=split_env(split_options(self.run_options))[1],
        )

    @property
    def container(self) -> str:
        """The container's name."""
        return CONTAINERS[self.kind]

    @property
    def replicated_job(self) -> str | None:
        """The name of the one Job in a JobSet; None for kinds without a JobSet."""
        return REPLICATED.get(self.kind)

    @property
    def args(self) -> list[str]:
        """What the container's `phalanx` is given."""
        cluster = "tf_config" if self.kind == "tfjob" else "kubernetes"
        # The user's own options follow, and take precedence.
        words = self.run.words(
            *("--cluster", cluster),
            *("--rendezvous-timeout", str(RENDEZVOUS_TIMEOUT)),
            *("--grace-period", str(self.grace_period)),
        )
        # Kubernetes expands `$(NAME)`, and makes `$` of `$$`.
        return [word.replace("$", "$$") for word in words]

    @cached_property
    def variables(self) -> dict[str, str]:
        """The user's variables, for a Secret: who may read pods may not read Secrets."""
        in_options = split_env(split_options(self.run_options))[0]
        return collect_env(self.env, self.env_from) | in_options

    @property
    def environment(self) -> dict[str, str]:
        """The container's. Kubernetes adds which pod it is: JOB_COMPLETION_INDEX, or TF_CONFIG."""
        name, group = self.run.name, self.replicated_job
        variables = {"PYTHONUNBUFFERED": "1", JOB: name}
        if self.kind != "tfjob":
            pod = f"{name}-{POD_OF_INDEX}" if group is None else f"{name}-{group}-0-{POD_OF_INDEX}"
            variables |= {PODS: str(self.run.hosts), POD_HOST: f"{pod}.{name}"}
        if "PYTHONUNBUFFERED" in self.variables:
            del variables["PYTHONUNBUFFERED"]  # It would take precedence over the Secret's.
        return variables

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels that a pod's node must have, which may hold what no variable's name does."""
        pairs = [item.partition("=") for item in self.node_selector or []]
        for name, equals, _ in pairs:
            if not name or not equals:
                raise ConfigurationError(f"--node-selector must be LABEL=VALUE; found {name!r}.")
        return {name: value for name, _, value in pairs}


def manifests(job: KubernetesJob) -> list[Manifest]:
    """All objects, in the order in which they are made."""
    values = {"job": job, "run": job.run, "code_dir": CODE_DIR}
    code = [] if job.script is None else render("config_map.yaml", values)
    secret = render("secret.yaml", values) if job.variables else []
    policy = render("network_policy.yaml", values) if job.network_policy else []
    return [*code, *secret, *policy, *render(f"{job.kind}.yaml", values)]


def _letters_of_pods(job: KubernetesJob) -> int:
    """Of a JobSet's longest pod's name, with what Kubernetes adds; 0 for other kinds."""
    if job.replicated_job is None:
        return 0
    return len(f"{job.run.name}-{job.replicated_job}-0-{job.run.hosts - 1}-abcde")
