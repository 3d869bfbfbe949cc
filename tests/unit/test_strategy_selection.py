import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.cluster.tpu import TpuEndpoint
from phalanx.errors import ConfigurationError
from phalanx.worker.strategy_selection import (
    check_name,
    check_one_gpu,
    choose_alone,
    choose_for_worker,
)

TWO = ("a:1", "b:1")


def config(type="worker", **cluster):
    return TFConfig(cluster=cluster or {"worker": TWO}, task_type=type, task_index=0)


@pytest.mark.parametrize(
    ("requested", "workers", "devices", "kind"),
    [
        ("auto", 1, 1, "single"),
        ("auto", 1, 2, "mirrored"),
        ("auto", 2, 1, "multiworker"),
        ("single", 1, 1, "single"),
        ("mirrored", 1, 1, "mirrored"),
        ("multiworker", 1, 1, "multiworker"),
    ],
)
def test_under_the_launcher(requested, workers, devices, kind):
    spec = WorkerSpec(rank=0, world_size=workers, addresses=TWO[:workers], strategy=requested)
    assert choose_for_worker(spec, devices).kind == kind


@pytest.mark.parametrize(
    ("requested", "tf_config", "gpus", "kind"),
    [
        ("auto", None, 1, "single"),
        ("auto", None, 2, "mirrored"),
        ("auto", None, 0, "single"),
        ("auto", config(), 0, "multiworker"),
        ("auto", config(), 4, "multiworker"),
        ("auto", config("chief", chief=("c:1",), worker=("a:1",)), 0, "multiworker"),
        ("auto", config(worker=("a:1",)), 0, "single"),
        ("mirrored", config(), 0, "mirrored"),
        ("single", None, 2, "single"),
        ("multiworker", None, 0, "multiworker"),
    ],
)
def test_alone(requested, tf_config, gpus, kind):
    assert choose_alone(requested, tf_config, gpus).kind == kind


def test_independent_workers_are_each_alone():
    spec = WorkerSpec(rank=1, world_size=3, independent=True)
    assert choose_for_worker(spec, 2).kind == "single"


def test_a_tpu_is_taken_where_one_worker_has_it():
    tpu = TpuEndpoint(address="local", accelerator="v4-8", reason="the metadata server names one")
    alone = WorkerSpec(rank=0, world_size=1, addresses=TWO[:1])
    chosen = choose_for_worker(alone, 1, tpu)
    assert (chosen.kind, chosen.reason) == ("tpu", "the metadata server names one")
    assert choose_alone("auto", None, 2, tpu=tpu) == chosen
    two = WorkerSpec(rank=0, world_size=2, addresses=TWO)
    assert choose_for_worker(two, 1, tpu).kind == "multiworker"
    assert choose_alone("auto", config(), 0, tpu=tpu).kind == "multiworker"
    assert choose_alone("single", None, 0, tpu=tpu).kind == "single"


def test_under_horovodrun():
    choice = choose_alone("auto", None, 0, horovod_size=2)
    assert (choice.kind, choice.reason) == ("horovod", "horovodrun started 2 processes")
    assert choose_alone("auto", None, 0, horovod_size=1).kind == "single"


def test_a_task_that_trains_with_no_one():
    with pytest.raises(ConfigurationError, match="evaluator 0"):
        choose_alone("auto", config("evaluator", worker=TWO, evaluator=("e:1",)), 0)


@pytest.mark.parametrize(
    ("tf_config", "launched", "says"),
    [
        (
            config(),
            False,
            "TF_CONFIG makes this worker 0, and this process sees 4 GPUs. Let the launcher start a "
            "worker for each GPU: phalanx run train.py, on each of the 2 hosts. Or let",
        ),
        (
            config(worker=("localhost:1", "localhost:2")),
            False,
            "worker for each GPU: env -u TF_CONFIG phalanx run --workers 4 train.py, once. Or let",
        ),
        (None, False, "; this process sees 4 GPUs. Let the launcher start a worker for each GPU: "
                      "phalanx run --workers 4 train.py. Or let"),
        (None, True, "CUDA_VISIBLE_DEVICES=0,1,2,3 phalanx run --workers 4"),
    ],
)  # fmt: skip
def test_several_gpus_in_a_worker_are_refused(tf_config, launched, says):
    check_one_gpu(1, tf_config, launched=launched, script="train.py")
    with pytest.raises(ConfigurationError) as refused:
        check_one_gpu(4, tf_config, launched=launched, script="train.py")
    assert says in str(refused.value)


def test_a_notebook_with_several_gpus_gets_the_function_to_call():
    with pytest.raises(ConfigurationError, match=r"phalanx\.launch\(FUNCTION, workers=2\)"):
        check_one_gpu(2, None, launched=False, script=None)


def test_an_unknown_name():
    with pytest.raises(ConfigurationError, match=r"auto, single, mirrored, .*; found 'ring'"):
        check_name("ring")
