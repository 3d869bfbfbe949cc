"""What is written for JobSet and Kubeflow's two operators, held against their own models."""

import json
from types import SimpleNamespace

import pytest

from phalanx.cluster.detect import detect
from phalanx.errors import ConfigurationError
from phalanx.submit.kubernetes import KubernetesJob, manifests

ASKED = {
    "plain": {},
    "all": {
        "gpus_per_worker": 1,
        "cpus_per_worker": "4",
        "memory_per_worker": "8Gi",
        "namespace": "team",
        "env": ["A=b c"],
        "node_selector": ["cloud.example/kind=gpu"],
        "target": __file__,
        "code_source": "configmap",
    },
}
requested = pytest.mark.parametrize("options", ASKED.values(), ids=ASKED)


def made(kind, *, name="mnist", **options):
    code = {"target": "/app/train.py", "code_source": "image", **options}
    job = KubernetesJob(**code, name=name, workers=3, image="x", pvc="c", kind=kind)
    return manifests(job)


def known_to(model, one):
    """What of an object a model knows; it refuses what has a wrong type."""
    return model.from_dict(one).to_dict()


@requested
def test_the_trainers_models_take_it(options):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    runtime, job = made("trainjob", **options)[-2:]
    assert known_to(models.TrainerV1alpha1TrainingRuntime, runtime) == runtime
    assert known_to(models.TrainerV1alpha1TrainJob, job) == job
    job_set = made("jobset", **options)[-1]
    assert known_to(models.JobsetV1alpha2JobSet, job_set) == job_set

    job["spec"]["trainer"]["nodes"] = 3
    assert known_to(models.TrainerV1alpha1TrainJob, job) != job


@requested
def test_the_training_operators_models_take_it(options):
    client = pytest.importorskip("kubeflow.training.api_client").ApiClient()

    def known(one):
        found = client.deserialize(SimpleNamespace(data=json.dumps(one)), "KubeflowOrgV1TFJob")
        return client.sanitize_for_serialization(found)

    job = made("tfjob", **options)[-1]
    assert known(job) == job
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["subdomains"] = "x"
    assert known(job) != job


def test_pods_of_a_train_job_find_each_other():
    runtime, job = made("trainjob", network_policy=False)
    (one,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # The trainer takes a Job with this label, whose one container has this name.
    assert one["template"]["metadata"]["labels"] == {
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"
    }
    (container,) = one["template"]["spec"]["template"]["spec"]["containers"]
    assert (one["replicas"], container["name"]) == (1, "node")
    rules = one["template"]["spec"]["podFailurePolicy"]["rules"]
    named = {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule}
    assert named == {"node"}

    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    for index in range(3):
        node_group = detect({**environment, "JOB_COMPLETION_INDEX": str(index)}, kind="kubernetes")
        # A JobSet calls pods by its own name, its Job's, the Job's index, and theirs.
        subdomain = runtime["spec"]["template"]["spec"]["network"]["subdomain"]
        names = tuple(f"{job['metadata']['name']}-node-0-{at}.{subdomain}" for at in range(3))
        assert (node_group.hosts, node_group.index, node_group.job) == (names, index, "mnist")


def test_a_train_job_names_its_runtime():
    objects = made("trainjob", target=__file__, code_source="configmap", namespace="team")
    *_, runtime, job = objects
    assert [one["kind"] for one in objects] == [
        "ConfigMap",
        "NetworkPolicy",
        "TrainingRuntime",
        "TrainJob",
    ]
    reference = job["spec"]["runtimeRef"]
    assert reference["name"] == runtime["metadata"]["name"]
    assert runtime["apiVersion"] == f"{reference['apiGroup']}/v1alpha1"
    assert reference["kind"] == runtime["kind"]
    assert runtime["spec"]["mlPolicy"] == job["spec"]["trainer"] == {"numNodes": 3}
    assert {one["metadata"]["namespace"] for one in objects} == {"team"}


@pytest.mark.parametrize(("kind", "most"), [("jobset", 49), ("trainjob", 48)])
def test_names_that_are_too_long_for_pods_are_refused(kind, most):
    assert made(kind, name="x" * most)
    with pytest.raises(ConfigurationError, match="letters"):
        made(kind, name="x" * (most + 1))
