import json

import pytest

from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.errors import ClusterError


def read(document):
    return TFConfig.from_environment({"TF_CONFIG": json.dumps(document)})


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_no_cluster(environment):
    assert TFConfig.from_environment(environment) is None


@pytest.mark.parametrize(
    ("cluster", "task", "tasks"),
    [
        ({"worker": ["a:1"]}, {"type": "worker", "index": 0}, 1),
        ({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": 1}, 2),
        ({"chief": ["c:1"], "worker": ["a:1", "b:1"]}, {"type": "chief", "index": 0}, 3),
        ({"worker": ["a:1", "b:1"], "ps": ["p:1"]}, {"type": "worker", "index": "1"}, 2),
        ({"worker": {"1": "b:1", "0": "a:1"}}, {"type": "worker", "index": 1}, 2),
    ],
)
def test_who_trains_in_step(cluster, task, tasks):
    assert read({"cluster": cluster, "task": task}).synchronous_tasks == tasks


def test_tasks_by_index_come_in_order():
    task = {"type": "worker", "index": 0}
    config = read({"cluster": {"worker": {"10": "k", "2": "c"}}, "task": task})
    assert config.cluster["worker"] == ("c", "k")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"cluster": {"worker": ["a:1"]}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}},
        {"cluster": {"worker": 3}, "task": {"type": "worker", "index": 0}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}},
    ],
)
def test_a_contradiction_is_named(document):
    with pytest.raises(ClusterError, match="TF_CONFIG"):
        read(document)


def test_not_json():
    with pytest.raises(ClusterError, match="worker: 1"):
        TFConfig.from_environment({"TF_CONFIG": "{worker: 1}"})
