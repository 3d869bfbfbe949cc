"""A run as an Indexed Job with a headless Service, alone or within a JobSet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.submit.pod_template import LABEL, metadata, pod_template

if TYPE_CHECKING:
    from phalanx.submit.kubernetes import KubernetesJob

Manifest = dict[str, Any]


def service(job: KubernetesJob) -> Manifest:
    """Gives each pod a name of its own, before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        "spec": {
            "clusterIP": "None",
            "selector": {LABEL: job.run.name},
            "publishNotReadyAddresses": True,
        },
    }


def indexed_job(job: KubernetesJob) -> Manifest:
    """A Job with a pod for each launcher."""
    name = job.run.name
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job),
        "spec": job_spec(job, pod_host=f"{name}-{{index}}.{name}", subdomain=name),
    }


def job_spec(
    job: KubernetesJob, *, pod_host: str, subdomain: str | None, container: str = "phalanx"
) -> Manifest:
    """What a Job of Kubernetes is told, whoever makes it.

    Args:
        job: what was asked for.
        pod_host: the pods' names, with {index} in them.
        subdomain: the headless Service; None where others make it.
        container: the container's name.
    """
    return {
        "completionMode": "Indexed",
        "completions": job.run.hosts,
        "parallelism": job.run.hosts,
        "backoffLimitPerIndex": job.backoff_limit,
        "podFailurePolicy": {
            "rules": [
                # Asked for what cannot work: no use to try again.
                _on_exit("FailJob", 2, container),
                # Saved and stopped: the pod that comes in its place continues.
                _on_exit("Ignore", 75, container),
                {"action": "Ignore", "onPodConditions": [_condition("DisruptionTarget")]},
            ]
        },
        "template": pod_template(
            job,
            pod_host=pod_host,
            subdomain=subdomain,
            restart_policy="Never",
            container=container,
        ),
    }


def _on_exit(action: str, code: int, container: str) -> Manifest:
    codes = {"containerName": container, "operator": "In", "values": [code]}
    return {"action": action, "onExitCodes": codes}


def _condition(name: str) -> Manifest:
    return {"type": name, "status": "True"}


def job_set(job: KubernetesJob) -> Manifest:
    """All pods restart together where one fails: what JobSet is for.

    https://jobset.sigs.k8s.io/docs/concepts/
    """
    name = job.run.name
    spec = job_spec(job, pod_host=f"{name}-all-0-{{index}}.{name}", subdomain=None)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job),
        "spec": {**jobset_policy(job), "replicatedJobs": [replicated_job("all", {"spec": spec})]},
    }


def jobset_policy(job: KubernetesJob) -> Manifest:
    """How the pods of a JobSet are named, and what happens when one fails."""
    return {
        "network": {"enableDNSHostnames": True, "subdomain": job.run.name},
        "failurePolicy": {"maxRestarts": job.backoff_limit},
    }


def replicated_job(name: str, template: Manifest) -> Manifest:
    """The one Job of a JobSet."""
    return {"name": name, "replicas": 1, "template": template}
