import json

import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.task_types import VariablePartitioning, parse_sharding, task_of
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import RunOptions

ADDRESSES = tuple(f"127.0.0.1:{port}" for port in range(1, 7))


def spec(rank, servers=2):
    return WorkerSpec(rank=rank, world_size=6, addresses=ADDRESSES, servers=servers)


@pytest.mark.parametrize(
    ("rank", "place"),
    [
        (0, ("chief", 0)),
        (1, ("worker", 0)),
        (3, ("worker", 2)),
        (4, ("ps", 0)),
        (5, ("ps", 1)),
    ],
)
def test_a_rank_has_its_place(rank, place):
    assert task_of(rank, 6, servers=2) == place
    assert (spec(rank).role, spec(rank).task_index) == place
    assert spec(rank).serves is (place[0] != "chief")


def test_without_servers_all_are_workers():
    assert [task_of(rank, 3, servers=0) for rank in range(3)] == [
        ("worker", 0),
        ("worker", 1),
        ("worker", 2),
    ]
    assert not spec(0, servers=0).serves


def test_tf_config_names_every_job():
    config = json.loads(spec(4).to_environment()["TF_CONFIG"])
    assert config == {
        "cluster": {
            "chief": ["127.0.0.1:1"],
            "worker": ["127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"],
            "ps": ["127.0.0.1:5", "127.0.0.1:6"],
        },
        "task": {"type": "ps", "index": 0},
    }
    assert WorkerSpec.from_environment(spec(4).to_environment()) == spec(4)


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        ("none", VariablePartitioning()),
        ("min-size:4096", VariablePartitioning(min_bytes=4096)),
        ("min-size:256KiB", VariablePartitioning(min_bytes=256 * 1024)),
        ("Min-Size:1mib", VariablePartitioning(min_bytes=1 << 20)),
        ("fixed-shards:3", VariablePartitioning(shards=3)),
    ],
)
def test_sharding_is_read(text, requested):
    assert parse_sharding(text) == requested


@pytest.mark.parametrize("text", ["", "min-size", "min-size:0", "fixed-shards:0", "2", "all"])
def test_other_shardings_are_refused(text):
    with pytest.raises(ConfigurationError, match=r"--variable-partitioner must be min-size:BYTES"):
        parse_sharding(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"servers": 2}, "--ps is for --strategy parameter-server; found --strategy auto"),
        ({"sharding": "none", "strategy": "mirrored"}, "--variable-partitioner is for --strategy"),
        ({"servers": 0, "strategy": "parameter-server"}, "--ps must be at least 1; found 0"),
    ],
)
def test_servers_belong_to_their_strategy(options, words):
    with pytest.raises(ConfigurationError, match=words):
        RunOptions(target="train.py", **options)
