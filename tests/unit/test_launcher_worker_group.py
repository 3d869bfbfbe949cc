import socket
from dataclasses import replace

import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import LaunchError
from phalanx.launcher.ports import pick_free_ports
from phalanx.launcher.rendezvous.node import LocalNode, allocate_addresses
from phalanx.launcher.resources import ResourceAllocation
from phalanx.launcher.worker_group import (
    WorkerGroupSpec,
    start_worker_group,
    worker_command,
    worker_environment,
    worker_specs,
)


def plan(run_dir, workers=2, *, strategy="auto", gpus=None, environment=None):
    allocation = ResourceAllocation(devices=None, threads=1, gpus=gpus)
    return WorkerGroupSpec(
        command=("train",),
        environment=environment or {},
        resources=[allocation] * workers,
        strategy=strategy,
        seed=7,
        run_dir=run_dir,
    )


def node(worker_group, command=("train",)):
    ports = lambda count: list(range(10, 10 + count))  # noqa: E731
    return LocalNode(command=command, environment=worker_group.environment, picks=ports)


def specs(worker_group):
    node_ranks = [0] * len(worker_group.resources)
    addresses = (
        allocate_addresses([node(worker_group)], node_ranks) if worker_group.is_networked else ()
    )
    return worker_specs(worker_group, attempt=1, addresses=addresses)


def environment_of(worker_group, spec):
    return worker_environment(
        worker_group.environment, spec, worker_group.resources[spec.rank].gpus
    )


def test_ports_are_distinct_and_free():
    ports = pick_free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_every_worker_has_its_place(tmp_path):
    first, second = specs(plan(tmp_path))
    assert first.addresses == second.addresses == ("127.0.0.1:10", "127.0.0.1:11")
    assert (first.rank, second.rank, second.attempt, second.seed) == (0, 1, 1, 7)


@pytest.mark.parametrize(("strategy", "addresses"), [("auto", 0), ("multiworker", 1)])
def test_one_worker_needs_an_address_only_to_be_multiworker(tmp_path, strategy, addresses):
    (spec,) = specs(plan(tmp_path, 1, strategy=strategy))
    assert len(spec.addresses) == addresses


def test_the_environment_of_a_worker(tmp_path):
    worker_group = plan(tmp_path, gpus=("3",), environment={"TF_CONFIG": "stale", "HOME": "/h"})
    spec = specs(worker_group)[1]
    environment = environment_of(worker_group, spec)
    assert WorkerSpec.from_environment(environment) == spec
    assert environment["HOME"] == "/h"
    assert environment["CUDA_VISIBLE_DEVICES"] == "3"
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert environment["PYTHONIOENCODING"] == "utf-8"
    assert environment["PYTHONHASHSEED"] == "7"
    assert environment["KERAS_BACKEND"] == "tensorflow"
    assert "stale" not in environment["TF_CONFIG"]


def test_the_users_variables_stand(tmp_path):
    requested = {"TF_CPP_MIN_LOG_LEVEL": "0", "PYTHONHASHSEED": "1", "CUDA_VISIBLE_DEVICES": "5"}
    worker_group = plan(tmp_path, environment=requested)
    assert requested.items() <= environment_of(worker_group, specs(worker_group)[0]).items()


def test_a_stale_tf_config_does_not_reach_a_single_worker(tmp_path):
    worker_group = plan(tmp_path, 1, environment={"TF_CONFIG": "stale"})
    assert "TF_CONFIG" not in environment_of(worker_group, specs(worker_group)[0])


def test_the_command():
    script = worker_command("a.py", ["-x", "--"], as_module=False)
    assert script[-6:] == ("-m", "phalanx.worker", "-f", "a.py", "-x", "--")
    assert worker_command("a.b", [], as_module=True)[-2:] == ("-m", "a.b")


def test_all_or_none(tmp_path):
    started = []

    class Handle:
        pid = 1
        got = None

        def __init__(self, spec):
            if started:
                raise LaunchError("no more processes")
            started.append(self)

        def signal(self, number):
            self.got = number

    worker_group = plan(tmp_path)
    with pytest.raises(LaunchError):
        start_worker_group(specs(worker_group), Handle)
    assert started[0].got == 9


def test_a_worker_group_of_some_keeps_their_homes(tmp_path):
    whole = replace(plan(tmp_path, 4), node_ranks=(0, 0, 1, 2))
    some = whole.of([1, 2, 3])
    assert [some.node_of(rank) for rank in range(3)] == [0, 1, 2]


def test_each_home_gives_ports_for_its_own(tmp_path):
    worker_group = plan(tmp_path)
    nodes = [node(worker_group), replace(node(worker_group), address="b")]
    found = allocate_addresses(nodes, [0, 1, 1])
    assert found == ("127.0.0.1:10", "b:10", "b:11")
