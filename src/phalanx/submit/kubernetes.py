"""A run as objects for Kubernetes: what was asked for, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from phalanx.cluster.environments.kubernetes import JOB, POD_HOST, POD_OF_INDEX, PODS
from phalanx.errors import ConfigurationError
from phalanx.submit.manifests import Manifest, render
from phalanx.submit.submit_spec import SubmitSpec

CODE_DIR = "/phalanx/code"
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
    """What `phalanx submit kubernetes` is asked for.

    Attributes:
        run: the run; its script is where the pods find it.
        image: the container's image, with Phalanx in it.
        kind: "job" for an Indexed Job, "jobset", "trainjob" or "tfjob" where the cluster has those.
        pvc: the PersistentVolumeClaim that all pods mount for the directory of runs.
        script: the text of the script, handed over in a ConfigMap; None where the image has it.
        gpus: GPUs of each pod.
        cpus: CPUs of each pod, as Kubernetes writes them: 2 or 500m.
        memory: memory of each pod: 8Gi.
        namespace: where to; None takes the one that the client is set to.
        grace_period: seconds that training has to save and stop when a pod is asked to go.
        backoff_limit: how often a pod of each index is replaced after a failure.
        env: variables of the containers.
        node_selector: labels that a pod's node must have.

    Raises:
        ConfigurationError: one of them cannot work.
    """

    run: SubmitSpec
    image: str
    kind: str = "job"
    pvc: str | None = None
    script: str | None = None
    gpus: int = 0
    cpus: str | None = None
    memory: str | None = None
    namespace: str | None = None
    grace_period: int = 60
    backoff_limit: int = 3
    env: Mapping[str, str] | None = None
    node_selector: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(
                f"--kind must be one of {', '.join(KINDS)}; found {self.kind!r}."
            )
        if self.pvc is None and self.run.hosts > 1:
            raise ConfigurationError(
                f"{self.run.hosts} pods need a directory of runs that they share: give --pvc "
                "with a PersistentVolumeClaim that many nodes can write (ReadWriteMany)."
            )
        if not PurePosixPath(self.run.run_dir).is_absolute():
            raise ConfigurationError(
                f"--run-dir must be an absolute path in the pods; found {self.run.run_dir!r}."
            )
        size = len((self.script or "").encode())
        if size > MOST_BYTES:
            raise ConfigurationError(
                f"A ConfigMap takes a script of {MOST_BYTES} bytes; found {size}. Put the code "
                "into the image, and give --code-source image."
            )
        if self.gpus < 0 or self.backoff_limit < 0 or self.grace_period < 1:
            raise ConfigurationError(
                "--gpus-per-worker and --backoff-limit must be 0 or more, --grace-period 1 or "
                f"more; found {self.gpus}, {self.backoff_limit} and {self.grace_period}."
            )
        if (letters := _letters_of_pods(self)) > LABEL_LETTERS:
            raise ConfigurationError(
                f"--kind {self.kind} calls pods after the run, in at most {LABEL_LETTERS} letters; "
                f"found {letters} with --name {self.run.name}. Give a --name that is "
                f"{letters - LABEL_LETTERS} shorter."
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
        return self.run.words("--cluster", cluster, "--grace-period", str(self.grace_period))

    @property
    def environment(self) -> dict[str, str]:
        """The container's. Kubernetes adds which pod it is: JOB_COMPLETION_INDEX, or TF_CONFIG."""
        name, group = self.run.name, self.replicated_job
        variables = {"PYTHONUNBUFFERED": "1", **(self.env or {}), JOB: name}
        if self.kind != "tfjob":
            pod = f"{name}-{POD_OF_INDEX}" if group is None else f"{name}-{group}-0-{POD_OF_INDEX}"
            variables |= {PODS: str(self.run.hosts), POD_HOST: f"{pod}.{name}"}
        return variables


def manifests(job: KubernetesJob) -> list[Manifest]:
    """All objects, in the order in which they are made."""
    values = {"job": job, "run": job.run, "code_dir": CODE_DIR}
    code = [] if job.script is None else render("config_map.yaml", values)
    return [*code, *render(f"{job.kind}.yaml", values)]


def _letters_of_pods(job: KubernetesJob) -> int:
    """Of a JobSet's longest pod's name, with what Kubernetes adds; 0 for other kinds."""
    if job.replicated_job is None:
        return 0
    return len(f"{job.run.name}-{job.replicated_job}-0-{job.run.hosts - 1}-abcde")
