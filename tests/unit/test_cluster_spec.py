import json

import pytest

from phalanx.cluster.spec import DeviceSpec, WorkerSpec
from phalanx.errors import ClusterError

TWO = ("127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.parametrize(
    "spec",
    [
        WorkerSpec(rank=0, world_size=1),
        WorkerSpec(rank=0, world_size=1, addresses=("127.0.0.1:1",), strategy="multiworker"),
        WorkerSpec(
            rank=1,
            world_size=2,
            addresses=TWO,
            devices=DeviceSpec(count=2, kind="gpu"),
            threads=3,
            seed=7,
            run_dir="/runs/a",
            attempt=2,
            interactive=True,
        ),
    ],
)
def test_a_spec_survives_the_process_boundary(spec):
    assert WorkerSpec.from_environment(spec.to_environment()) == spec


def test_tf_config_names_every_worker_and_this_one():
    environment = WorkerSpec(rank=1, world_size=2, addresses=TWO).to_environment()
    assert json.loads(environment["TF_CONFIG"]) == {
        "cluster": {"worker": list(TWO)},
        "task": {"type": "worker", "index": 1},
    }


def test_one_worker_without_an_address_has_no_tf_config():
    assert "TF_CONFIG" not in WorkerSpec(rank=0, world_size=1).to_environment()


def test_no_launcher_no_spec():
    assert WorkerSpec.from_environment({}) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank": 0}', "nonsense"])
def test_a_mangled_variable_is_named(text):
    with pytest.raises(ClusterError, match="PHALANX_WORKER_SPEC"):
        WorkerSpec.from_environment({"PHALANX_WORKER_SPEC": text})


def test_independent_workers_have_no_addresses_and_share_no_script():
    spec = WorkerSpec(rank=1, world_size=3, independent=True)
    assert "TF_CONFIG" not in spec.to_environment()
    assert WorkerSpec.from_environment(spec.to_environment()) == spec
    assert not spec.shares_script
    assert WorkerSpec(rank=0, world_size=2, addresses=("a:1", "b:2")).shares_script
    with pytest.raises(ClusterError):
        WorkerSpec(rank=1, world_size=3)
