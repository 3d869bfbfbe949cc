import pytest

from phalanx.cluster.spec import DeviceSpec
from phalanx.errors import ConfigurationError
from phalanx.launcher.resources import (
    Machine,
    allocate_over_nodes,
    allocate_resources,
    count_gpus,
    default_workers,
    idle_gpus,
    share_gpus,
    visible_gpus,
)

LAPTOP = Machine(cores=8)
SERVER = Machine(cores=16, gpus=("0", "1", "2", "3"))
CPU2 = DeviceSpec(count=2, kind="cpu")
GPU1 = DeviceSpec(count=1, kind="gpu")
GPU2 = DeviceSpec(count=2, kind="gpu")


def resources(machine, workers, *, strategy="auto", devices=None, threads=None):
    return allocate_resources(
        machine, workers=workers, strategy=strategy, devices=devices, threads=threads
    )


@pytest.mark.parametrize(
    ("variable", "gpus"),
    [
        ("", ()),
        ("-1", ()),
        ("0", ("0",)),
        ("2, 0", ("2", "0")),
        ("GPU-abc,1", ("GPU-abc", "1")),
        ("0,-1,1", ("0",)),
    ],
)
def test_visible_gpus(variable, gpus):
    assert visible_gpus(variable) == gpus


def test_gpus_are_counted_by_their_device_files(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path) == ("0", "1")


def test_the_machine_respects_cuda_visible_devices():
    assert Machine.here({"CUDA_VISIBLE_DEVICES": "3,1"}).gpus == ("3", "1")


@pytest.mark.parametrize(
    ("machine", "strategy", "devices", "workers"),
    [
        (LAPTOP, "auto", None, 1),
        (SERVER, "auto", None, 4),
        (SERVER, "auto", GPU1, 4),
        (SERVER, "auto", GPU2, 1),
        (SERVER, "mirrored", None, 1),
        (SERVER, "single", None, 1),
        (SERVER, "auto", CPU2, 1),
        (SERVER, "multiworker", None, 4),
    ],
)
def test_default_workers(machine, strategy, devices, workers):
    assert default_workers(machine, strategy, devices) == workers


@pytest.mark.parametrize(
    ("workers", "threads", "each"),
    [(1, None, None), (2, None, 4), (3, None, 2), (9, None, 1), (2, 3, 3)],
)
def test_cores_are_shared_out(workers, threads, each):
    assert {one.threads for one in resources(LAPTOP, workers, threads=threads)} == {each}


def test_gpus_are_shared_out_without_overlap():
    assert [each.gpus for each in resources(SERVER, 2)] == [("0",), ("1",)]
    assert [each.gpus for each in resources(SERVER, 3)] == [("0",), ("1",), ("2",)]
    assert [each.gpus for each in resources(SERVER, 2, devices=GPU1)] == [
        ("0",),
        ("1",),
    ]
    assert resources(SERVER, 2, devices=GPU1)[1].devices == GPU1


@pytest.mark.parametrize("strategy", ["auto", "multiworker", "horovod"])
def test_without_a_number_there_is_one_worker_for_each_gpu(strategy):
    shared, nodes = allocate_over_nodes(
        [SERVER], workers=None, strategy=strategy, devices=None, threads=None
    )
    assert [(each.gpus, each.devices) for each in shared] == [((gpu,), GPU1) for gpu in SERVER.gpus]
    assert nodes == [0, 0, 0, 0]


@pytest.mark.parametrize("strategy", ["auto", "multiworker", "horovod"])
def test_one_worker_sees_one_gpu(strategy):
    (each,) = resources(SERVER, 1, strategy=strategy)
    assert (each.devices, each.gpus) == (None, ("0",))


@pytest.mark.parametrize("strategy", ["single", "mirrored", "tpu"])
def test_one_process_sees_what_there_is(strategy):
    (each,) = resources(SERVER, 1, strategy=strategy)
    assert (each.devices, each.gpus) == (None, None)


def test_launchers_on_one_host_share_its_gpus_out():
    hosts = ["a", "a", "b", "a", "a"]
    shared = share_gpus([SERVER] * 5, hosts, {})
    assert [machine.gpus for machine in shared] == [("0",), ("1",), SERVER.gpus, ("2",), ("3",)]
    allocations, nodes = allocate_over_nodes(
        shared, workers=None, strategy="auto", devices=None, threads=None
    )
    gpus = [each.gpus for each in allocations]
    assert gpus == [("0",), ("1",), *((gpu,) for gpu in SERVER.gpus), ("2",), ("3",)]
    assert nodes == [0, 1, 2, 2, 2, 2, 3, 4]


def test_launchers_keep_the_gpus_that_were_given_to_each():
    own = [Machine(gpus=("0", "1")), Machine(gpus=("2", "3")), Machine(gpus=("4",))]
    assert share_gpus(own, ["a"] * 3, {}) == own
    assert share_gpus([SERVER] * 5, ["a"] * 5, {}) == [SERVER] * 5
    for given in ({"SLURM_GPUS_PER_TASK": "2"}, {"SLURM_TRES_PER_TASK": "cpu=2,gres/gpu:2"}):
        assert share_gpus([SERVER] * 2, ["a"] * 2, given) == [SERVER] * 2
    assert share_gpus([LAPTOP] * 2, ["a"] * 2, {}) == [LAPTOP] * 2


def test_the_only_gpu_is_named():
    (each,) = resources(Machine(cores=2, gpus=("0",)), 1)
    assert (each.devices, each.gpus) == (None, ("0",))


def test_several_gpus_in_one_process_are_asked_for():
    (each,) = resources(SERVER, 1, strategy="mirrored", devices=GPU2)
    assert (each.devices, each.gpus) == (GPU2, ("0", "1"))
    with pytest.raises(ConfigurationError, match="--workers 2 SCRIPT"):
        resources(SERVER, 1, strategy="multiworker", devices=GPU2)


def test_gpus_left_over_are_reported():
    assert idle_gpus(SERVER, resources(SERVER, 4)) == ""
    assert idle_gpus(LAPTOP, resources(LAPTOP, 2)) == ""
    assert idle_gpus(SERVER, resources(SERVER, 1, strategy="mirrored")) == ""
    assert idle_gpus(SERVER, resources(SERVER, 2, devices=DeviceSpec(count=1, kind="cpu"))) == ""
    assert idle_gpus(SERVER, resources(SERVER, 2)) == (
        "2 of 4 GPUs here are used, one by each worker; --workers 4 uses all"
    )
    assert idle_gpus(SERVER, resources(SERVER, 1)).startswith("1 of 4 GPUs here is used")


def test_cpu_workers_leave_the_gpus_alone():
    assert resources(SERVER, 1, strategy="mirrored", devices=CPU2)[0].devices == CPU2


def test_one_gpu_is_split_where_that_is_asked_for():
    split = DeviceSpec(count=2, kind="logical-gpu")
    assert default_workers(SERVER, "auto", split) == 1
    (each,) = resources(SERVER, 1, strategy="mirrored", devices=split)
    assert (each.devices, each.gpus) == (split, ("0",))
    with pytest.raises(ConfigurationError, match="logical-gpu:2 splits a GPU"):
        resources(LAPTOP, 1, strategy="mirrored", devices=split)


def test_a_bare_number_means_cpus_where_there_is_no_gpu():
    assert resources(LAPTOP, 1, devices=DeviceSpec(count=2))[0].devices == CPU2


@pytest.mark.parametrize(
    ("machine", "workers", "devices"),
    [
        (SERVER, 5, None),
        (SERVER, 1, DeviceSpec(count=5, kind="gpu")),
        (LAPTOP, 1, GPU1),
        (LAPTOP, 2, DeviceSpec(count=2)),
    ],
)
def test_more_than_there_is(machine, workers, devices):
    with pytest.raises(ConfigurationError, match="cpu:"):
        resources(machine, workers, devices=devices)
