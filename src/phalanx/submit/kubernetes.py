"""A run as objects for Kubernetes: what was asked for, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from phalanx.errors import ConfigurationError
from phalanx.submit.indexed_job import Manifest, indexed_job, job_set, service
from phalanx.submit.kubeflow import tf_job, train_job, training_runtime
from phalanx.submit.pod_template import CODE_DIR, metadata
from phalanx.submit.submit_spec import SubmitSpec

KINDS = ("job", "jobset", "trainjob", "tfjob")
REPLICATED = {"jobset": "all", "trainjob": "node"}
"""What a JobSet's pods are called after its own name."""
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


def manifests(job: KubernetesJob) -> list[Manifest]:
    """All objects, in the order in which they are made."""
    made = [_config_map(job)] if job.script is not None else []
    if job.kind == "tfjob":
        return [*made, tf_job(job)]
    if job.kind == "trainjob":
        return [*made, training_runtime(job), train_job(job)]
    if job.kind == "jobset":
        return [*made, job_set(job)]
    return [*made, service(job), indexed_job(job)]


def _config_map(job: KubernetesJob) -> Manifest:
    name = PurePosixPath(job.run.target).relative_to(CODE_DIR).name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job),
        "data": {name: job.script},
    }


def _letters_of_pods(job: KubernetesJob) -> int:
    """Of a JobSet's longest pod's name, with what Kubernetes adds; 0 for other kinds."""
    if job.kind not in REPLICATED:
        return 0
    return len(f"{job.run.name}-{REPLICATED[job.kind]}-0-{job.run.hosts - 1}-abcde")
