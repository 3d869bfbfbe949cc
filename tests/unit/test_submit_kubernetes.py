"""Objects for Kubernetes: right by its schemas, and their pods find each other."""

import http.server
import json
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cluster.detect import detect
from phalanx.errors import ConfigurationError, LaunchError
from phalanx.submit import kubernetes_client
from phalanx.submit.job_registry import SubmittedJob
from phalanx.submit.kubernetes import KINDS, KubernetesJob, manifests

validate = pytest.importorskip("kubernetes_validate")
VERSIONS = ("1.29", "1.31", "1.33")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import keras\n\nprint('trained: 1')\n")
    return tmp_path


def submit(*words):
    common = ("--image", "registry/phalanx:1", "--pvc", "shared", "--name", "mnist")
    return CliRunner().invoke(app, ["submit", "kubernetes", *common, *words])


def objects(*words):
    result = submit("--dry-run", *words)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


SETS = {
    "plain": ("--workers", "4"),
    "all": (
        *("--workers", "2", "--gpus-per-worker", "1", "--cpus-per-worker", "4"),
        *(
            "--memory-per-worker",
            "8Gi",
            "--namespace",
            "team",
            "--env",
            "A=b c",
            "--backoff-limit",
            "0",
        ),
        *("--node-selector", "cloud.example/kind=gpu", "--run-options", "--seed 7"),
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("words", SETS.values(), ids=SETS)
def test_the_schemas_take_it(place, words, version):
    for one in objects(*words, "train.py", "--epochs", "2"):
        validate.validate(one, version, strict=True)


def test_the_schemas_would_refuse_what_is_wrong(place):
    job = objects("train.py")[-1]
    job["spec"]["completion"] = 4
    with pytest.raises(validate.ValidationError):
        validate.validate(job, VERSIONS[0], strict=True)


def pod_of(job):
    return job["spec"]["template"]["spec"]


def environment_of(container):
    return {one["name"]: one["value"] for one in container["env"]}


def variables_of(objects, container):
    """What the Secrets that a container refers to hold."""
    wanted = [one["secretRef"]["name"] for one in container.get("envFrom", [])]
    secrets = [one for one in objects if one["kind"] == "Secret"]
    assert [one["metadata"]["name"] for one in secrets] == wanted
    return {name: value for one in secrets for name, value in one["stringData"].items()}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_variables_are_only_in_a_secret(place, kind):
    (place / "train.env").write_text("KEY=s3cr3t\nA=file\n")
    options = "--env OTHER=s3cr3t-too --seed 7"
    words = ("--kind", kind, "--env-from", "train.env", "--env", "A=1", "--run-options", options)
    made = objects(*words, "train.py")
    (container,) = [pod["containers"][0] for one in made for pod in pods_in(one)]
    assert variables_of(made, container) == {"KEY": "s3cr3t", "A": "1", "OTHER": "s3cr3t-too"}
    assert "s3cr3t" not in json.dumps([one for one in made if one["kind"] != "Secret"])
    for one in made:
        if one["apiVersion"] in ("v1", "batch/v1"):
            validate.validate(one, VERSIONS[0], strict=True)


def labels_of_pods(one):
    """The labels in every pod template of an object."""
    if isinstance(one, list):
        return [labels for each in one for labels in labels_of_pods(each)]
    if not isinstance(one, dict):
        return []
    if "containers" in one.get("spec", {}):
        return [one["metadata"]["labels"]]
    return labels_of_pods(list(one.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_pods_of_the_run_reach_its_pods(place, kind):
    made = objects("--kind", kind, "--workers", "2", "--pvc", "runs", "train.py")
    (policy,) = [one["spec"] for one in made if one["kind"] == "NetworkPolicy"]
    selected = policy["podSelector"]["matchLabels"]
    assert selected
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]
    labels = [found for one in made for found in labels_of_pods(one)]
    assert labels
    assert all(selected.items() <= each.items() for each in labels)


def test_a_network_policy_can_be_left_out(place):
    made = objects("--no-network-policy", "train.py")
    assert "NetworkPolicy" not in [one["kind"] for one in made]


def test_a_variable_takes_precedence_over_a_default(place):
    made = objects("--env", "PYTHONUNBUFFERED=", "train.py")
    (container,) = pod_of(made[-1])["containers"]
    assert "PYTHONUNBUFFERED" not in environment_of(container)
    assert variables_of(made, container) == {"PYTHONUNBUFFERED": ""}


def test_a_run_without_variables_has_no_secret(place):
    made = objects("train.py")
    (container,) = pod_of(made[-1])["containers"]
    assert variables_of(made, container) == {}
    assert "envFrom" not in container


def test_pods_find_each_other(place):
    *_, service, job = objects("--workers", "3", "train.py")
    pod = pod_of(job)
    (container,) = pod["containers"]
    for index in range(3):
        environment = {**environment_of(container), "JOB_COMPLETION_INDEX": str(index)}
        node_group = detect(environment, kind="kubernetes")
        # Kubernetes calls a pod by its Job and index, under the Service that is its subdomain.
        names = tuple(f"{job['metadata']['name']}-{at}.{pod['subdomain']}" for at in range(3))
        assert (node_group.hosts, node_group.index, node_group.job) == (names, index, "mnist")
    assert pod["subdomain"] == service["metadata"]["name"]
    assert (
        service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)


def test_a_pod_that_has_saved_and_stopped_is_no_failure(place):
    job = objects("--workers", "3", "train.py")[-1]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    by_code = {
        code: rule["action"]
        for rule in rules
        for code in rule.get("onExitCodes", {}).get("values", [])
    }
    assert by_code == {2: "FailJob", 75: "Ignore"}


def test_the_containers_command_is_one_of_phalanx(place):
    job = objects("--workers", "3", "--run-options", "--seed 7", "train.py", "--epochs", "2")[-1]
    (container,) = pod_of(job)["containers"]
    assert container["command"] == ["phalanx"]
    name, *words = container["args"]
    requested = typer.main.get_command(app).commands[name].make_context(name, words).params
    assert (requested["workers"], requested["seed"], requested["cluster"]) == ("3", 7, "kubernetes")
    assert (requested["name"], requested["resume"]) == ("mnist", True)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(requested["run_dir"]) == mounts["runs"]
    assert requested["target"] == f"{mounts['code']}/train.py"


@pytest.mark.parametrize("kind", KINDS)
def test_launchers_wait_longer_for_pods_than_for_hosts(place, kind):
    own = ("--run-options", "--rendezvous-timeout 7")
    for options, expected in (((), 1800.0), (own, 7.0)):
        made = objects("--kind", kind, "--workers", "3", *options, "train.py")
        (container,) = [pod["containers"][0] for one in made for pod in pods_in(one)]
        name, *words = container["args"]
        requested = typer.main.get_command(app).commands[name].make_context(name, words).params
        assert requested["rendezvous_timeout"] == expected


def test_the_script_arrives_as_it_is(place):
    config_map = objects("train.py")[0]
    assert config_map["data"] == {"train.py": (place / "train.py").read_text()}


ODD = (
    "a: b",
    "'it's \"q\"",
    "x\n---\nkind: Secret",
    "{{ run.name }}",
    "yes",
    "null",
    "\u2028é\U0001f600",
)


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_values_arrive_as_they_are(place, kind, text):
    script = f'text = r"""\n{text}\n"""\n'
    (place / "train.py").write_text(script)
    labels = ("--node-selector", f"{text}={text}", "--node-selector", "k=v")
    made = objects("--kind", kind, "--env", f"A={text}", *labels, "train.py", text)
    assert {one["metadata"]["name"] for one in made} == {"mnist"}
    assert made[0]["data"] == {"train.py": script}
    pods = [pod for one in made for pod in pods_in(one)]
    assert [pod["nodeSelector"] for pod in pods] == [{text: text, "k": "v"}]
    (container,) = pods[0]["containers"]
    assert container["args"][-1] == text
    assert variables_of(made, container) == {"A": text}


def pods_in(value):
    """Whatever in an object has containers."""
    if isinstance(value, list):
        return [pod for each in value for pod in pods_in(each)]
    if not isinstance(value, dict):
        return []
    own = [value] if "containers" in value else []
    return own + [pod for each in value.values() for pod in pods_in(each)]


def test_code_in_the_image_needs_no_config_map(place):
    kinds = [one["kind"] for one in objects("--code-source", "image", "/app/train.py")]
    assert kinds == ["NetworkPolicy", "Service", "Job"]


def test_other_kinds(place):
    job_set = objects("--workers", "2", "--kind", "jobset", "train.py")[-1]
    spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    validate.validate(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec},
        VERSIONS[0],
        strict=True,
    )
    environment = environment_of(spec["template"]["spec"]["containers"][0])
    node_group = detect({**environment, "JOB_COMPLETION_INDEX": "1"})
    assert node_group.hosts == ("mnist-all-0-0.mnist", "mnist-all-0-1.mnist")
    assert job_set["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "mnist"}

    tf_job = objects("--workers", "2", "--kind", "tfjob", "train.py")[-1]
    workers = tf_job["spec"]["tfReplicaSpecs"]["Worker"]
    (container,) = workers["template"]["spec"]["containers"]
    assert (workers["replicas"], container["name"]) == (2, "tensorflow")
    assert container["args"][:3] == ["run", "--cluster", "tf_config"]
    cluster = {"worker": ["mnist-worker-0.team.svc:2222", "mnist-worker-1.team.svc:2222"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    environment = {**environment_of(container), "TF_CONFIG": json.dumps(config)}
    assert detect(environment).job == "mnist"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--image", "", "train.py"), "give --image"),
        (
            ("--code-source", "tar", "train.py"),
            "--code-source must be one of configmap, image; found 'tar'",
        ),
        (("--kind", "pod", "train.py"), "--kind must be one of job, .*found 'pod'"),
        (("--run-dir", "runs", "train.py"), "must be an absolute path in the pods; found 'runs'"),
        (("--gpus-per-worker", "-1", "train.py"), "found -1, 3 and 60"),
        (
            ("--workers", "2", "--gpus-per-worker", "2", "train.py"),
            "phalanx submit kubernetes --workers 4 --gpus-per-worker 1",
        ),
        (
            ("--node-selector", "gpu", "train.py"),
            "--node-selector must be LABEL=VALUE; found 'gpu'",
        ),
        (("big.py",), "takes a script of 900000 bytes; found 900001"),
    ],
)
def test_what_cannot_work_is_refused(place, words, message):
    (place / "big.py").write_text("#" * 900_001)
    error = submit(*words).exception
    assert isinstance(error, ConfigurationError)
    with pytest.raises(ConfigurationError, match=message):
        raise error


def test_several_pods_share_a_directory():
    with pytest.raises(ConfigurationError, match=r"2 pods need a directory .* --pvc"):
        KubernetesJob(target="/app/train.py", code_source="image", workers=2, image="x")


@contextmanager
def api(refuse=(), pods=(), objects=None, forbidden=()):
    """Something that answers as Kubernetes does to what is asked here; gives what was asked.

    Args:
        refuse: ends of paths at which nothing can be created.
        pods: what a list of pods has.
        objects: the objects that exist, by path; those that are created are added.
        forbidden: ends of paths that the user may not use.
    """
    requested = []
    there = {} if objects is None else objects

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or "null")
            url = urlsplit(self.path)
            requested.append((self.command, url.path, body))
            code, answered = 200, body or {"kind": "Status"}
            if url.path.endswith(tuple(forbidden)):
                code, answered = 403, {}
            elif self.command == "POST" and url.path.endswith(tuple(refuse)):
                code, answered = 409, {}
            elif self.command == "POST":
                made = {**body["metadata"], "uid": f"uid of the {body['kind']}"}
                there[f"{url.path}/{made['name']}"] = {**body, "metadata": made}
            elif url.path.endswith("/pods"):
                answered = {"kind": "PodList", "apiVersion": "v1", "items": pods}
            elif url.path not in there:
                code, answered = 404, {}
            elif self.command == "GET":
                answered = there[url.path]
            elif body in (None, {"preconditions": {"uid": there[url.path]["metadata"]["uid"]}}):
                del there[url.path]
            else:
                code, answered = 409, {}
            text = json.dumps(answered).encode()
            if url.path.endswith("/log"):
                code, text = 200, f"log of {url.path.split('/')[-2]}\n".encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requested
        finally:
            server.shutdown()
            thread.join()


def set_to(url, place, monkeypatch):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }
    path = place / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    kubernetes = pytest.importorskip("kubernetes")
    # The client has read the variable's value when it was imported, into both.
    for module in (kubernetes.config, kubernetes.config.kube_config):
        monkeypatch.setattr(module, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))


def pod(name, index, created):
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "annotations": {"batch.kubernetes.io/job-completion-index": index},
        },
        "status": {"phase": "Running"},
    }


PODS = (
    pod("mnist-1-b", "1", "2026-01-01T00:00:00Z"),
    pod("mnist-0-a", "0", "2026-01-01T00:00:00Z"),
    pod("mnist-0-c", "0", "2026-01-01T00:01:00Z"),
)


def test_a_secret_is_created_and_a_refusal_quotes_nothing(place, monkeypatch):
    words = ("--env", "KEY=s3cr3t", "train.py")
    with api() as (url, requested):
        set_to(url, place, monkeypatch)
        assert submit(*words).exit_code == 0
        assert [body for *_, body in requested] == objects(*words)
        assert ("POST", "/api/v1/namespaces/team/secrets") in [each[:2] for each in requested]
    kept = [path for path in (place / "runs").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if "s3cr3t" in path.read_text()]
    with api(refuse=["secrets"]) as (url, requested):
        set_to(url, place, monkeypatch)
        error = submit(*words).exception
    assert isinstance(error, LaunchError)
    assert "refused the Secret mnist: 409" in str(error)
    assert "s3cr3t" not in str(error)


POLICIES = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies"


def test_apply_status_logs_cancel(place, monkeypatch):
    with api(pods=PODS) as (url, requested):
        set_to(url, place, monkeypatch)
        result = submit("--workers", "2", "train.py")
        assert result.exit_code == 0, result.exception
        assert [(verb, path) for verb, path, _ in requested] == [
            ("POST", "/api/v1/namespaces/team/configmaps"),
            ("POST", POLICIES),
            ("POST", "/api/v1/namespaces/team/services"),
            ("POST", "/apis/batch/v1/namespaces/team/jobs"),
        ]
        assert [body for *_, body in requested] == objects("--workers", "2", "train.py")

        status = CliRunner().invoke(app, ["status", "mnist"]).output.splitlines()
        assert sorted(status) == [
            "0  mnist-0-a  Running",
            "0  mnist-0-c  Running",
            "1  mnist-1-b  Running",
        ]
        logs = CliRunner().invoke(app, ["logs", "mnist"])
        assert logs.output == "log of mnist-0-c\n", logs.exception
        other = CliRunner().invoke(app, ["logs", "mnist", "--pod", "1"]).output
        assert other == "log of mnist-1-b\n"
        assert "no pod 2 of mnist" in str(
            CliRunner().invoke(app, ["logs", "mnist", "--pod", "2"]).exception
        )

        requested.clear()
        assert CliRunner().invoke(app, ["cancel", "mnist"]).exit_code == 0
        assert [path for verb, path, _ in requested if verb == "DELETE"] == [
            "/apis/batch/v1/namespaces/team/jobs/mnist",
            "/api/v1/namespaces/team/services/mnist",
            "/api/v1/namespaces/team/configmaps/mnist",
            f"{POLICIES}/mnist",
        ]


def test_cancel_leaves_objects_of_the_name_that_are_not_the_runs(place, monkeypatch):
    there = {}
    with api(objects=there) as (url, _):
        set_to(url, place, monkeypatch)
        assert submit("--env", "KEY=1", "train.py").exit_code == 0
        made = [each.rsplit("/", 2)[-2] for each in there]
        assert made == ["configmaps", "secrets", "networkpolicies", "services", "jobs"]
        secret = there["/api/v1/namespaces/team/secrets/mnist"]
        secret["metadata"]["labels"] = {"phalanx/run": "another"}
        del there["/api/v1/namespaces/team/configmaps/mnist"]["metadata"]["labels"]
        result = CliRunner().invoke(app, ["cancel", "mnist"])
    assert result.exit_code == 0, result.exception
    assert [each.rsplit("/", 2)[-2] for each in there] == ["configmaps", "secrets"]
    for kind in ("ConfigMap", "Secret"):
        assert f"left the {kind} mnist: it does not have the label phalanx/run=mnist" in (
            result.output + result.stderr
        )


def test_cancel_leaves_what_has_the_name_since_it_looked(place, monkeypatch):
    there = {}
    with api(objects=there) as (url, _):
        set_to(url, place, monkeypatch)
        assert submit("train.py").exit_code == 0
        read = kubernetes_client._read
        monkeypatch.setattr(kubernetes_client, "_read", lambda *a: {**read(*a), "uid": "older"})
        result = CliRunner().invoke(app, ["cancel", "mnist"])
    assert result.exit_code == 0, result.exception
    assert len(there) == 4


def test_cancel_without_permission_for_what_is_optional(place, monkeypatch):
    there = {}
    with api(objects=there, forbidden=("secrets/mnist", "networkpolicies/mnist")) as (url, _):
        set_to(url, place, monkeypatch)
        assert submit("train.py").exit_code == 0
        result = CliRunner().invoke(app, ["cancel", "mnist"])
    assert result.exit_code == 0, result.exception
    assert list(there) == [f"{POLICIES}/mnist"]
    lines = result.output + result.stderr
    assert "kubectl delete secret -n team -l phalanx/run=mnist" in lines
    with api(objects=there, forbidden=("jobs/mnist",)) as (url, _):
        set_to(url, place, monkeypatch)
        assert CliRunner().invoke(app, ["cancel", "mnist"]).exit_code != 0


def test_what_was_made_is_taken_back(place, monkeypatch):
    with api(refuse=("/jobs",)) as (url, requested):
        set_to(url, place, monkeypatch)
        error = submit("--workers", "2", "train.py").exception
    assert "Kubernetes refused the Job mnist: 409" in str(error)
    assert [(verb, path.rsplit("/", 1)[-1]) for verb, path, _ in requested[-2:]] == [
        ("DELETE", "mnist"),
        ("DELETE", "mnist"),
    ]
    assert not (place / "runs").exists()


def test_other_kinds_are_made_and_deleted(place, monkeypatch):
    with api() as (url, requested):
        set_to(url, place, monkeypatch)
        assert submit("--kind", "jobset", "--code-source", "image", "train.py").exit_code == 0
        path = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"
        assert [(verb, at) for verb, at, _ in requested] == [("POST", POLICIES), ("POST", path)]
        CliRunner().invoke(app, ["cancel", "mnist"])
        assert ("DELETE", f"{path}/mnist") in [each[:2] for each in requested]

        requested.clear()
        assert submit("--kind", "trainjob", "--code-source", "image", "train.py").exit_code == 0
        place = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team"
        CliRunner().invoke(app, ["cancel", "mnist"])
        assert [(verb, at) for verb, at, _ in requested if verb != "GET"] == [
            ("POST", POLICIES),
            ("POST", f"{place}/trainingruntimes"),
            ("POST", f"{place}/trainjobs"),
            ("DELETE", f"{place}/trainjobs/mnist"),
            ("DELETE", f"{place}/trainingruntimes/mnist"),
            ("DELETE", f"{POLICIES}/mnist"),
        ]


def test_no_cluster_to_speak_to(place, monkeypatch):
    set_to("http://127.0.0.1:1", place, monkeypatch)
    (place / "kubeconfig").write_text("")
    with pytest.raises(LaunchError, match="found no cluster to speak to"):
        kubernetes_client.connect()


def test_no_pods():
    class NoPods:
        class client:  # noqa: N801
            class CoreV1Api:
                def list_namespaced_pod(self, *args, **options):
                    return type("List", (), {"items": []})

    job = SubmittedJob(kind="kubernetes", job="mnist", name="mnist", namespace="team", object="Job")
    assert "no pods" in kubernetes_client.status(job, NoPods)


def test_every_kind_of_manifest_is_named_equally():
    code = {"target": "/app/train.py", "code_source": "image", "name": "mnist"}
    for kind in KINDS:
        made = manifests(KubernetesJob(**code, workers=2, image="x", pvc="c", kind=kind))
        assert {one["metadata"]["name"] for one in made} == {"mnist"}


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_expands_nothing_in_arguments(place, kind):
    made = objects("--kind", kind, "train.py", "$(HOME) $$ $A")
    (container,) = [pod["containers"][0] for one in made for pod in pods_in(one)]
    assert container["args"][-1] == "$$(HOME) $$$$ $$A"  # Kubernetes makes `$` of `$$`
