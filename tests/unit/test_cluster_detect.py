"""Which cluster this is, from recorded environments."""

import json

import pytest

from phalanx.cluster.detect import CLUSTER_NAMES, detect, probe_all
from phalanx.cluster.environments.host_list import from_hosts, parse_hosts
from phalanx.cluster.environments.slurm import tasks_per_node
from phalanx.cluster.local_host import LocalHost, resolve
from phalanx.errors import ClusterError, ConfigurationError

ME = LocalHost(
    names=frozenset({"b.example.org"}), addresses=frozenset({"10.0.0.2", "127.0.0.1", "::1"})
)

# Recorded with Slurm 22.05: srun -N3 -n5, task 3.
STEP = {
    "SLURMD_NODENAME": "n1",
    "SLURM_GTIDS": "2,3",
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_CPUS_PER_NODE": "2(x2),1",
    "SLURM_JOB_NODELIST": "n[0-2]",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "1",
    "SLURM_NODELIST": "n[0-2]",
    "SLURM_NPROCS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[0-2]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
}
# The second step of a job on three nodes: srun -m cyclic -N2 -n3, task 1.
CYCLIC = {
    **STEP,
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_GTIDS": "1",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "n[0-1]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
# In the batch script of `sbatch -N3 --ntasks-per-node=2`: there is a PROCID, but no step.
BATCH = {
    "SLURMD_NODENAME": "n0",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "n[0-2]",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "6",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x3)",
}
# In the shell that `salloc -N2` gives.
SHELL = {
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
# mpirun -np 4, Open MPI 4.1.
OPEN_MPI = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_MCA_orte_ess_jobid": "1748434945",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_FD": "9", "MPI_LOCALRANKID": "0"}
# Recorded with Ray 2.60: what a launcher has that `phalanx submit ray` has started.
RAY_BUNDLE = {
    "OMP_NUM_THREADS": "1",
    "PHALANX_RUN_ID": "it-0",
    "PHALANX_RAY_HOSTS": "127.0.0.2,127.0.0.3",
    "PHALANX_RAY_NODE_RANK": "1",
    "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
    "RAY_CLIENT_MODE": "0",
    "RAY_JOB_ID": "02000000",
    "RAY_LD_PRELOAD_ON_WORKERS": "0",
    "RAY_RAYLET_PID": "5687",
}
# The entrypoint of `ray job submit`; and a task of it, which Ray gives no information about others.
RAY_ENTRYPOINT = {
    "RAY_ADDRESS": "10.0.0.1:6379",
    "RAY_CLIENT_MODE": "0",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {}}, "metadata": {}}',
    "RAY_LD_PRELOAD_ON_WORKERS": "0",
}
RAY_TASK = {name: value for name, value in RAY_BUNDLE.items() if not name.startswith("PHALANX_")}
TORCHRUN = {
    "GROUP_RANK": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "WORLD_SIZE": "2",
}
INDEXED = {
    "JOB_COMPLETION_INDEX": "2",
    "PHALANX_NUM_PODS": "3",
    "PHALANX_POD_HOSTNAME_TEMPLATE": "train-{index}.train",
    "PHALANX_RUN_ID": "train",
}


def tf_config(cluster, kind, index, **more):
    return {
        "TF_CONFIG": json.dumps(
            {"cluster": cluster, "task": {"type": kind, "index": index}, **more}
        )
    }


KUBEFLOW = {
    "chief": ["mnist-chief-0.team.svc:2222"],
    "worker": ["mnist-worker-0.team.svc:2222", "mnist-worker-1.team.svc:2222"],
    "ps": ["mnist-ps-0.team.svc:2222"],
}
VERTEX = {
    "chief": ["cmle-training-workerpool0-0a1b-0:2222"],
    "worker": ["cmle-training-workerpool1-0a1b-0:2222"],
}

FOUND = {
    "a Slurm step": (STEP, "slurm", 3, ("n0", "", "", "", ""), "slurm-17"),
    "nodes in turn": (CYCLIC, "slurm", 1, ("n0", "", ""), "slurm-17-1"),
    "a task on each node": (
        {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x3)", "SLURM_PROCID": "1", "SLURM_GTIDS": "1"},
        "slurm",
        1,
        ("n0", "n1", "n2"),
        "slurm-17",
    ),
    "all tasks on one node": (
        {**STEP, "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_STEP_NODELIST": "n2"}
        | {"SLURM_NODEID": "0"},
        "slurm",
        3,
        ("n2", "n2", "n2", "n2"),
        "slurm-17",
    ),
    "tasks in an order of somebody's own": (
        {**STEP, "SLURM_DISTRIBUTION": "arbitrary"},
        "slurm",
        3,
        ("",) * 5,
        "slurm-17",
    ),
    "a Slurm step without the newer names": (
        {k: v for k, v in STEP.items() if not k.startswith("SLURM_STEP_")} | {"SLURM_STEP_ID": "0"},
        "slurm",
        3,
        ("n0", "", "", "", ""),
        "slurm-17",
    ),
    "a batch script": (BATCH, "slurm", 0, ("n0",), "slurm-2"),
    "a batch script of a newer Slurm": (
        {**BATCH, "SLURM_STEP_ID": "4294967291"},
        "slurm",
        0,
        ("n0",),
        "slurm-2",
    ),
    "Open MPI": (OPEN_MPI, "mpi", 3, ("", "", "", ""), "mpi-1748434945"),
    "Open MPI in a Slurm step": (
        {**STEP, **OPEN_MPI},
        "mpi",
        3,
        ("", "", "", ""),
        "mpi-1748434945",
    ),
    "PMI": (HYDRA, "mpi", 1, ("", "", ""), None),
    "PMI, with a name for the run": (
        {**HYDRA, "PHALANX_RUN_ID": "first"},
        "mpi",
        1,
        ("", "", ""),
        "first",
    ),
    "torchrun": (TORCHRUN, "torchrun", 1, ("10.0.0.1", ""), None),
    "torchrun in a Slurm step": (
        {**STEP, **TORCHRUN, "TORCHELASTIC_RUN_ID": "mnist"},
        "torchrun",
        1,
        ("10.0.0.1", ""),
        "mnist",
    ),
    "a bundle of Ray": (RAY_BUNDLE, "ray", 1, ("127.0.0.2", "127.0.0.3"), "it-0"),
    "a bundle of Ray that srun started": (
        {**STEP, **RAY_BUNDLE},
        "ray",
        1,
        ("127.0.0.2", "127.0.0.3"),
        "it-0",
    ),
    "the entrypoint of a Ray job": (RAY_ENTRYPOINT, "ray", 0, ("",), None),
    "Ray Train's TensorflowTrainer": (
        {**RAY_TASK, **tf_config({"worker": ["a:1", "b:1"]}, "worker", 1)},
        "tf_config",
        1,
        ("a", "b"),
        None,
    ),
    "an Indexed Job": (
        INDEXED,
        "kubernetes",
        2,
        ("train-0.train", "train-1.train", "train-2.train"),
        "train",
    ),
    "a pod of one": (
        {"JOB_COMPLETION_INDEX": "0", "PHALANX_NUM_PODS": "1"},
        "kubernetes",
        0,
        ("",),
        None,
    ),
    "worker 0 leads": (
        tf_config({"worker": ["a:1", "b:1"]}, "worker", 1),
        "tf_config",
        1,
        ("a", "b"),
        None,
    ),
    "the chief leads": (
        tf_config(KUBEFLOW, "worker", 0, environment="cloud"),
        "tf_config",
        1,
        (
            "mnist-chief-0.team.svc",
            "mnist-worker-0.team.svc",
            "mnist-worker-1.team.svc",
            "mnist-ps-0.team.svc",
        ),
        None,
    ),
    "servers come last": (
        tf_config(KUBEFLOW, "ps", 0),
        "tf_config",
        3,
        (
            "mnist-chief-0.team.svc",
            "mnist-worker-0.team.svc",
            "mnist-worker-1.team.svc",
            "mnist-ps-0.team.svc",
        ),
        None,
    ),
    "Vertex AI": (
        tf_config(VERTEX, "chief", 0, job='{"scale_tier": "CUSTOM"}', environment="cloud"),
        "tf_config",
        0,
        ("cmle-training-workerpool0-0a1b-0", "cmle-training-workerpool1-0a1b-0"),
        None,
    ),
    "a master": (
        tf_config({"master": ["a:1"], "worker": ["b:1"]}, "worker", "0"),
        "tf_config",
        1,
        ("a", "b"),
        None,
    ),
    "addresses of IPv6": (
        tf_config({"worker": ["[::1]:1", "[fd00::2]:1"]}, "worker", 0),
        "tf_config",
        0,
        ("::1", "fd00::2"),
        None,
    ),
    "hosts by name, before all others": (
        {**STEP, "PHALANX_HOSTS": "a,b", "PHALANX_NODE_RANK": "0", "PHALANX_RUN_ID": "first"},
        "hosts",
        0,
        ("a", "b"),
        "first",
    ),
    "hosts, found by this machine's name": (
        {"PHALANX_HOSTS": "a, b, c"},
        "hosts",
        1,
        ("a", "b", "c"),
        None,
    ),
    "hosts, found by this machine's address": (
        {"PHALANX_HOSTS": "10.0.0.1,10.0.0.2"},
        "hosts",
        1,
        ("10.0.0.1", "10.0.0.2"),
        None,
    ),
    "host 0 of a TPU": (
        {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2", "TPU_WORKER_ID": "0"},
        "tpu",
        0,
        ("10.0.0.1",),
        None,
    ),
    "two clusters that say the same": (
        {**CYCLIC, **tf_config({"worker": ["a:1", "b:1", "c:1"]}, "worker", 1)},
        "tf_config",
        1,
        ("a", "b", "c"),
        None,
    ),
    "a TF_CONFIG in a batch script": (
        {**BATCH, **tf_config({"worker": ["a:1", "b:1"]}, "worker", 1)},
        "tf_config",
        1,
        ("a", "b"),
        None,
    ),
}


@pytest.mark.parametrize(
    ("environment", "kind", "index", "hosts", "job"), FOUND.values(), ids=FOUND
)
def test_a_cluster_is_found(environment, kind, index, hosts, job):
    node_group = detect(environment, me=ME)
    assert (node_group.kind, node_group.index, node_group.hosts, node_group.job) == (
        kind,
        index,
        hosts,
        job,
    )
    assert node_group.why


ALONE = {
    "nothing": {},
    "a shell in an allocation": SHELL,
    "an interactive step": {**SHELL, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}
    | {"SLURM_JOB_NODELIST": "n0"},
    "a batch script on one node": {**BATCH, "SLURM_JOB_NODELIST": "n0"},
    "a job script for torch": {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "WORLD_SIZE": "4"},
    "a run inside a worker": {**STEP, "PHALANX_WORKER_SPEC": "{}"},
    "a task of Ray": RAY_TASK,
    "a TPU of one host": {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
    "a TF_CONFIG that names no cluster": {"TF_CONFIG": '{"environment": "cloud"}'},
}


@pytest.mark.parametrize("environment", ALONE.values(), ids=ALONE)
def test_one_launcher_alone(environment):
    assert detect(environment, me=ME) is None


def test_a_batch_script_says_how_to_use_all_nodes():
    assert "srun --ntasks-per-node=1 phalanx run" in detect(BATCH).why


def test_the_entrypoint_of_a_ray_job_says_how_to_use_all_nodes():
    assert "use `phalanx submit ray`" in detect({**STEP, **RAY_ENTRYPOINT}).why


REFUSED = {
    "a rank that is none": ({**STEP, "SLURM_PROCID": "5"}, "SLURM_PROCID is 5 and"),
    "nodes and tasks that do not fit": (
        {**STEP, "SLURM_STEP_NODELIST": "n[0-1]"},
        r"2 nodes \(n0, n1\) and tasks on 3",
    ),
    "a node of another component": ({**STEP, "SLURM_NODEID": "3"}, "and SLURM_NODEID 3, but"),
    "no node list": (
        {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
        "SLURM_STEP_NODELIST must be set",
    ),
    "tasks that are no numbers": ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2x3"}, "found '2x3'"),
    "a bundle of Ray that is none": (
        {**RAY_BUNDLE, "PHALANX_RAY_NODE_RANK": "2"},
        r"0 to 1 among 2 hosts; found 2 \(PHALANX_RAY_NODE_RANK is 2 of 2 bundles",
    ),
    "a bundle of Ray without its index": (
        {"PHALANX_RAY_HOSTS": "a,b"},
        "PHALANX_RAY_NODE_RANK must be a whole number from 0; it is not set",
    ),
    "no PROCID": ({**STEP, "SLURM_PROCID": ""}, "SLURM_PROCID must be a whole number"),
    "an MPI rank that is none": (
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "3"},
        "OMPI_COMM_WORLD_RANK must be less than OMPI_COMM_WORLD_SIZE; found 3 and 3",
    ),
    "an MPI without a size": ({"PMI_RANK": "1"}, "PMI_SIZE must be .* it is not set"),
    "torchrun without its leader": ({**TORCHRUN, "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
    "a rank beyond": ({**TORCHRUN, "RANK": "2"}, "RANK must be less than WORLD_SIZE"),
    "an Indexed Job that says nothing": (
        {"JOB_COMPLETION_INDEX": "1"},
        "PHALANX_NUM_PODS is not set.*--cluster none",
    ),
    "pods without names": (
        {**INDEXED, "PHALANX_POD_HOSTNAME_TEMPLATE": "train-0"},
        "found 'train-0'",
    ),
    "an index beyond": ({**INDEXED, "JOB_COMPLETION_INDEX": "3"}, "found 3 and 3"),
    "an address without a port": (
        tf_config({"worker": ["a", "b"]}, "worker", 0),
        "found 'a'. Add the port",
    ),
    "a task that is none": (tf_config({"worker": ["a:1"]}, "worker", 1), "worker 1, but"),
    "a chief and a master": (
        tf_config({"chief": ["a:1"], "master": ["b:1"]}, "chief", 0),
        "a chief and a master",
    ),
    "a task of no known kind": (tf_config({"dog": ["a:1"]}, "dog", 0), "found 'dog'"),
    "an evaluator": (tf_config(KUBEFLOW, "evaluator", 0), "says evaluator"),
    "a sparse cluster": (
        {"TF_CONFIG": '{"sparseCluster": {"worker": {"1": "a:1"}}, "task": {"type": "worker"}}'},
        "enableDynamicWorker",
    ),
    "TF_CONFIG that is no JSON": ({"TF_CONFIG": "worker"}, "TF_CONFIG must hold JSON"),
    "another's address": (
        tf_config({"worker": ["10.0.0.2:1", "10.0.0.9:1"]}, "worker", 1),
        r"worker 1 is at 10.0.0.9, but this machine has the addresses 10.0.0.2",
    ),
    "hosts of which none is this": ({"PHALANX_HOSTS": "x,y"}, "No host of PHALANX_HOSTS x,y"),
    "hosts of which two are this": ({"PHALANX_HOSTS": "b,10.0.0.2"}, r"0 \(b\), 1 \(10.0.0.2\)"),
    "a host's index beyond": (
        {"PHALANX_HOSTS": "x,y", "PHALANX_NODE_RANK": "2"},
        "--node-rank must be 0 to 1.*found 2",
    ),
    "a host's index that is no number": (
        {"PHALANX_HOSTS": "x,y", "PHALANX_NODE_RANK": "y"},
        "PHALANX_NODE_RANK must be a number",
    ),
    "hosts with ports": ({"PHALANX_HOSTS": "x:22,y"}, "found 'x:22'"),
    "an empty host": ({"PHALANX_HOSTS": "x,,y"}, "found ''"),
    "another host of a TPU": (
        {"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2", "TPU_WORKER_ID": "1"},
        "host 1 of a TPU with 2 hosts",
    ),
    "two clusters at once": (
        {**STEP, **tf_config({"worker": ["a:1", "b:1"]}, "worker", 1)},
        "Two clusters at once: tf_config .* and slurm .*--cluster tf_config or --cluster slurm",
    ),
    "a second cluster that is broken": ({**STEP, "JOB_COMPLETION_INDEX": "1"}, "PHALANX_NUM_PODS"),
}


@pytest.mark.parametrize(("environment", "message"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_itself_is_refused(environment, message):
    with pytest.raises(ClusterError, match=message):
        detect(environment, me=ME)


def test_one_kind_can_be_forced():
    both = {**STEP, **tf_config({"worker": ["a:1", "b:1"]}, "worker", 1)}
    assert detect(both, kind="slurm").hosts[0] == "n0"
    assert detect(both, kind="tf_config").hosts == ("a", "b")
    assert detect(both, kind="none") is None
    assert detect({"JOB_COMPLETION_INDEX": "1"}, kind="none") is None
    with pytest.raises(ClusterError, match="--cluster mpi was asked for, but"):
        detect(both, kind="mpi")
    with pytest.raises(
        ConfigurationError, match=r"--cluster must be one of auto, none, hosts.*'lsf'"
    ):
        detect(both, kind="lsf")


def test_a_look_reports_every_kind():
    looks = probe_all({**STEP, "PMI_RANK": "1"}, me=ME)
    assert tuple(one.kind for one in looks) == CLUSTER_NAMES[2:]
    output = {one.kind: one for one in looks}
    assert output["slurm"].node_group.index == 3
    assert "PMI_SIZE" in str(output["mpi"].error)
    assert output["torchrun"].node_group is None


def test_hosts_of_the_command_line():
    assert parse_hosts("a,b, fd00::1") == ("a", "b", "fd00::1")
    assert from_hosts(("a", "b"), 1, None).why == "--hosts has 2 hosts, the index is 1"
    with pytest.raises(ClusterError, match="not known by name"):
        from_hosts(("a", "b"), None, None)


@pytest.mark.parametrize(
    ("host", "is_mine"),
    [
        ("b", True),
        ("B.example.org", True),
        ("b.cluster.local", False),
        ("10.0.0.2", True),
        ("10.0.0.20", False),
        ("[::1]", True),
        ("by-dns", True),
        ("elsewhere", False),
    ],
)
def test_names_and_addresses_of_this_machine(host, is_mine):
    table = {"by-dns": ["10.0.0.2"], "elsewhere": ["10.0.0.7"]}
    me = LocalHost(names=ME.names, addresses=ME.addresses, resolve=lambda name: table.get(name, ()))
    assert me.is_host(host) is is_mine


def test_this_machine_knows_itself():
    me = LocalHost.here()
    assert me.is_host("127.0.0.1")
    assert me.is_host(min(me.names))
    assert resolve("127.0.0.1") == {"127.0.0.1"}
    assert resolve("no-such-host.invalid") == ()


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2]), (" 3 , 1 ", [3, 1])],
)
def test_tasks_of_nodes(text, counts):
    assert tasks_per_node(text) == counts
