"""A run as objects of Kubeflow: a TrainJob with a runtime of its own, or the older TFJob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.submit.indexed_job import Manifest, job_spec, jobset_policy, replicated_job
from phalanx.submit.pod_template import metadata, pod_template

if TYPE_CHECKING:
    from phalanx.submit.kubernetes import KubernetesJob

TRAINER = "trainer.kubeflow.org"
NODE = "node"
"""What the trainer wants the Job of the workers and their container to be called."""


def training_runtime(job: KubernetesJob) -> Manifest:
    """How the trainer runs Phalanx: Kubeflow itself has no runtime for TensorFlow.

    Its policy names no framework, so the trainer adds nothing of its own to the pods.
    https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/
    """
    name = job.run.name
    spec = job_spec(
        job, pod_host=f"{name}-{NODE}-0-{{index}}.{name}", subdomain=None, container=NODE
    )
    template = {
        "metadata": {"labels": {f"{TRAINER}/trainjob-ancestor-step": "trainer"}},
        "spec": spec,
    }
    return {
        "apiVersion": f"{TRAINER}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(job),
        "spec": {
            "mlPolicy": {"numNodes": job.run.hosts},
            "template": {
                "spec": {**jobset_policy(job), "replicatedJobs": [replicated_job(NODE, template)]}
            },
        },
    }


def train_job(job: KubernetesJob) -> Manifest:
    """One run in that runtime.

    https://www.kubeflow.org/docs/components/trainer/
    """
    return {
        "apiVersion": f"{TRAINER}/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job),
        "spec": {
            "runtimeRef": {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": job.run.name},
            "trainer": {"numNodes": job.run.hosts},
        },
    }


def tf_job(job: KubernetesJob) -> Manifest:
    """Kubeflow's operator writes TF_CONFIG and gives the names.

    https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/
    """
    template = pod_template(
        job, pod_host=None, subdomain=None, restart_policy=None, container="tensorflow"
    )
    workers = {"replicas": job.run.hosts, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": metadata(job),
        "spec": {
            "runPolicy": {"backoffLimit": job.backoff_limit, "cleanPodPolicy": "None"},
            "tfReplicaSpecs": {"Worker": workers},
        },
    }
