import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.tf_config import TFConfig
from phalanx.errors import OptionError
from phalanx.worker.choice import check_name, choose_alone, choose_for_worker

TWO = ("a:1", "b:1")


def config(type="worker", **cluster):
    return TFConfig(cluster=cluster or {"worker": TWO}, task_type=type, task_index=0)


@pytest.mark.parametrize(
    ("asked", "workers", "devices", "kind"),
    [
        ("auto", 1, 1, "single"),
        ("auto", 1, 2, "mirrored"),
        ("auto", 2, 1, "multiworker"),
        ("single", 1, 1, "single"),
        ("mirrored", 1, 1, "mirrored"),
        ("multiworker", 1, 1, "multiworker"),
    ],
)
def test_under_the_launcher(asked, workers, devices, kind):
    spec = WorkerSpec(rank=0, world_size=workers, addresses=TWO[:workers], strategy=asked)
    assert choose_for_worker(spec, devices).kind == kind


@pytest.mark.parametrize(
    ("asked", "tf_config", "devices", "gpus", "kind"),
    [
        ("auto", None, 1, 0, "single"),
        ("auto", None, 1, 1, "single"),
        ("auto", None, 2, 2, "mirrored"),
        ("auto", None, 2, 0, "single"),
        ("auto", config(), 1, 0, "multiworker"),
        ("auto", config(), 4, 4, "multiworker"),
        ("auto", config("chief", chief=("c:1",), worker=("a:1",)), 1, 0, "multiworker"),
        ("auto", config(worker=("a:1",)), 1, 0, "single"),
        ("mirrored", config(), 1, 0, "mirrored"),
        ("single", None, 2, 2, "single"),
        ("multiworker", None, 1, 0, "multiworker"),
    ],
)
def test_alone(asked, tf_config, devices, gpus, kind):
    assert choose_alone(asked, tf_config, devices, gpus).kind == kind


def test_a_task_that_trains_with_nobody():
    with pytest.raises(OptionError, match="evaluator 0"):
        choose_alone("auto", config("evaluator", worker=TWO, evaluator=("e:1",)), 1, 0)


def test_an_unknown_name():
    with pytest.raises(OptionError, match="auto, single, mirrored, multiworker; found 'ring'"):
        check_name("ring")
