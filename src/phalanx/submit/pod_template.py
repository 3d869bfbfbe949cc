"""One pod of a run in Kubernetes: a container in which `phalanx run` is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.cluster.environments.kubernetes import JOB, POD_HOST, PODS

if TYPE_CHECKING:
    from phalanx.submit.kubernetes import KubernetesJob

CODE_DIR = "/phalanx/code"
LABEL = "phalanx/run"
STOPPING = 30
"""Seconds beyond the grace of training before Kubernetes kills a pod."""


def metadata(job: KubernetesJob) -> dict[str, Any]:
    """How every object of a run is called."""
    place = {} if job.namespace is None else {"namespace": job.namespace}
    return {"name": job.run.name, **place, "labels": {LABEL: job.run.name}}


def pod_template(
    job: KubernetesJob,
    *,
    pod_host: str | None,
    subdomain: str | None,
    restart_policy: str | None,
    container: str,
) -> dict[str, Any]:
    """The pod's text.

    Args:
        job: what was asked for.
        pod_host: the pods' names, with {index} in them; None where the cluster tells by TF_CONFIG.
        subdomain: the headless Service.
        restart_policy: what the kubelet does when the container ends; None leaves it out.
        container: the container's name.
    """
    spec = {
        **({} if subdomain is None else {"subdomain": subdomain}),
        **({} if restart_policy is None else {"restartPolicy": restart_policy}),
        "terminationGracePeriodSeconds": job.grace_period + STOPPING,
        **({} if job.node_selector is None else {"nodeSelector": dict(job.node_selector)}),
        "containers": [_container(job, pod_host, container)],
        "volumes": _volumes(job),
    }
    labels = {LABEL: job.run.name}
    return {"metadata": {"labels": labels}, "spec": {k: v for k, v in spec.items() if v != []}}


def _container(job: KubernetesJob, pod_host: str | None, name: str) -> dict[str, Any]:
    cluster = "tf_config" if pod_host is None else "kubernetes"
    made = {
        "name": name,
        "image": job.image,
        "command": ["phalanx"],
        "args": job.run.words("--cluster", cluster, "--grace-period", str(job.grace_period)),
        "env": _environment(job, pod_host),
        "resources": _resources(job),
        "volumeMounts": [
            {"name": volume["name"], "mountPath": _MOUNTS[volume["name"]] or job.run.run_dir}
            for volume in _volumes(job)
        ],
    }
    return {key: value for key, value in made.items() if value not in ([], {})}


def _environment(job: KubernetesJob, pod_host: str | None) -> list[dict[str, str]]:
    """Which pod this is comes from Kubernetes itself: JOB_COMPLETION_INDEX, or TF_CONFIG."""
    values = {"PYTHONUNBUFFERED": "1", **(job.env or {}), JOB: job.run.name}
    if pod_host is not None:
        values |= {PODS: str(job.run.hosts), POD_HOST: pod_host}
    return [{"name": name, "value": value} for name, value in values.items()]


def _resources(job: KubernetesJob) -> dict[str, Any]:
    asked = {"cpu": job.cpus, "memory": job.memory}
    requests = {name: value for name, value in asked.items() if value is not None}
    limits = {} if job.memory is None else {"memory": job.memory}
    if job.gpus:
        limits["nvidia.com/gpu"] = str(job.gpus)
    both = {"requests": requests, "limits": limits}
    return {name: values for name, values in both.items() if values}


_MOUNTS = {"runs": None, "code": CODE_DIR, "shm": "/dev/shm"}


def _volumes(job: KubernetesJob) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    if job.pvc is not None:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": job.pvc}})
    if job.script is not None:
        volumes.append({"name": "code", "configMap": {"name": job.run.name}})
    if job.gpus:  # NCCL's; a container has 64 MiB of it otherwise
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return volumes
