"""Kubernetes' API, by its official client: make, look at and delete the objects of a run.

The client is an optional extra: `pip install "phalanx[kubernetes]"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from phalanx.errors import LaunchError
from phalanx.submit.job_registry import SubmittedJob

LABEL = "phalanx/run"
CUSTOM = {
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    "TrainingRuntime": ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
    "TFJob": ("kubeflow.org", "v1", "tfjobs"),
}
"""Group, version and plural of what others have added to Kubernetes."""
_BUILT_IN = {
    "ConfigMap": ("CoreV1Api", "config_map"),
    "Secret": ("CoreV1Api", "secret"),
    "NetworkPolicy": ("NetworkingV1Api", "network_policy"),
    "Service": ("CoreV1Api", "service"),
    "Job": ("BatchV1Api", "job"),
}
"""The client's class for Kubernetes' own objects, and how its methods name them."""
_OPTIONAL = ("Secret", "NetworkPolicy")
Verb = Literal["create", "read", "delete"]


def connect() -> ModuleType:
    """The client, set to the cluster that kubectl would use, or to that of this pod.

    Raises:
        LaunchError: it is not installed, or knows of no cluster.
    """
    try:
        kubernetes = import_module("kubernetes")
    except ImportError as error:
        raise LaunchError(
            "Asked to speak to Kubernetes; the Python package kubernetes is not installed. Install "
            "phalanx[kubernetes], or pipe --dry-run into kubectl apply -f -."
        ) from error
    try:
        kubernetes.config.load_config()
    except (kubernetes.config.ConfigException, OSError) as error:
        raise LaunchError(
            f"Asked to speak to Kubernetes; found no cluster to speak to ({error}). Set "
            "KUBECONFIG, or see that kubectl works."
        ) from error
    return kubernetes


def namespace_of(requested: str | None, kubernetes: ModuleType) -> str:
    """The namespace that was asked for, or the one that the client is set to."""
    if requested is not None:
        return requested
    try:
        _, active = kubernetes.config.list_kube_config_contexts()
    except kubernetes.config.ConfigException:
        return "default"
    return str(active["context"].get("namespace", "default"))


def apply(objects: Sequence[dict[str, Any]], namespace: str, kubernetes: ModuleType) -> None:
    """Make the objects, in order; take those back that were made if one is refused.

    Raises:
        LaunchError: Kubernetes refused one.
    """
    made: list[dict[str, Any]] = []
    for one in objects:
        try:
            _call("create", one["kind"], namespace, kubernetes, body=one)
        except kubernetes.client.ApiException as error:
            for before in reversed(made):
                _delete(before["kind"], before["metadata"]["name"], namespace, kubernetes)
            # What Kubernetes says of a Secret may quote its values.
            details = "" if one["kind"] == "Secret" else f" {error.body}"
            raise LaunchError(
                f"Kubernetes refused the {one['kind']} {one['metadata']['name']}: {error.status} "
                f"{error.reason}{details}. What was made before it is deleted again."
            ) from error
        made.append(one)


def _call(verb: Verb, kind: str, namespace: str, kubernetes: ModuleType, **arguments: Any) -> Any:
    """Have Kubernetes create, read or delete an object.

    Raises:
        ApiException: Kubernetes refuses.
    """
    client = kubernetes.client
    if kind in CUSTOM:
        group, version, plural = CUSTOM[kind]
        arguments |= {"group": group, "version": version, "plural": plural}
        api, noun = "CustomObjectsApi", "custom_object"
    else:
        api, noun = _BUILT_IN[kind]
    name = "get" if verb == "read" and kind in CUSTOM else verb
    method = getattr(getattr(client, api)(), f"{name}_namespaced_{noun}")
    return method(namespace=namespace, **arguments)


def _read(kind: str, name: str, namespace: str, kubernetes: ModuleType) -> dict[str, Any]:
    """The metadata of an object, as in its manifest.

    Raises:
        ApiException: Kubernetes refuses, or there is no such object.
    """
    found = _call("read", kind, namespace, kubernetes, name=name)
    document = kubernetes.client.ApiClient().sanitize_for_serialization(found)
    return dict(document.get("metadata") or {})


def _delete(
    kind: str, name: str, namespace: str, kubernetes: ModuleType, *, uid: str | None = None
) -> None:
    """Delete an object and its dependents; no error if it no longer exists.

    Args:
        kind: its kind.
        name: its name.
        namespace: where it is.
        kubernetes: the client.
        uid: of the one object that is meant: not of another one that has its name by now.
    """
    options: dict[str, Any] = {} if uid is None else {"body": {"preconditions": {"uid": uid}}}
    if kind == "Job":
        options["propagation_policy"] = "Background"
    try:
        _call("delete", kind, namespace, kubernetes, name=name, **options)
    except kubernetes.client.ApiException as error:
        # Who may not delete these has made none, and cancels a job nevertheless.
        is_not_allowed = error.status == 403 and kind in _OPTIONAL
        is_another = error.status == 409 and uid is not None
        if error.status != 404 and not is_not_allowed and not is_another:
            raise


def cancel(job: SubmittedJob, kubernetes: ModuleType) -> list[str]:
    """Delete the Job, its pods, and what was made with it; gives a line for what it leaves.

    An object of the same name that does not have the run's label is the user's own.
    """
    name, namespace = job.job, str(job.namespace)
    others = ("TrainingRuntime",) if job.object == "TrainJob" else ("Service",)
    left: list[str] = []
    for kind in (str(job.object), *others, "ConfigMap", *_OPTIONAL):
        try:
            found = _read(kind, name, namespace, kubernetes)
        except kubernetes.client.ApiException as error:
            if error.status == 404:
                continue
            if error.status != 403 or kind not in _OPTIONAL:
                raise
            left.append(
                f"may not read the {kind} {name} (403), and does not delete it. If this run made "
                f"one: kubectl delete {kind.lower()} -n {namespace} -l {LABEL}={name}"
            )
            continue
        if (found.get("labels") or {}).get(LABEL) != name:
            left.append(
                f"left the {kind} {name}: it does not have the label {LABEL}={name}, so phalanx "
                "submit did not make it"
            )
            continue
        _delete(kind, name, namespace, kubernetes, uid=found.get("uid"))
    return left


def status(job: SubmittedJob, kubernetes: ModuleType) -> str:
    """A line for each pod: its index and phase."""
    pods = _pods(job, kubernetes)
    lines = [f"{_index(pod)}  {pod.metadata.name}  {pod.status.phase}" for pod in pods]
    return "\n".join(lines) or "no pods: it has not started, or is deleted"


def logs(job: SubmittedJob, index: int, kubernetes: ModuleType) -> str:
    """What the launcher in the newest pod of an index has said.

    Raises:
        LaunchError: there is no such pod.
    """
    pods = [pod for pod in _pods(job, kubernetes) if _index(pod) == str(index)]
    if not pods:
        raise LaunchError(f"There is no pod {index} of {job.name} (yet). See phalanx status.")
    latest = max(pods, key=lambda pod: pod.metadata.creation_timestamp)
    core = kubernetes.client.CoreV1Api()
    answer = core.read_namespaced_pod_log(
        latest.metadata.name, str(job.namespace), _preload_content=False
    )  # else the client takes a log that looks like JSON for JSON
    return str(answer.data.decode(errors="replace"))


def _pods(job: SubmittedJob, kubernetes: ModuleType) -> list[Any]:
    core = kubernetes.client.CoreV1Api()
    found = core.list_namespaced_pod(str(job.namespace), label_selector=f"{LABEL}={job.job}")
    return sorted(found.items, key=_index)


def _index(pod: Any) -> str:
    notes = pod.metadata.annotations or {}
    return str(notes.get("batch.kubernetes.io/job-completion-index", "?"))
