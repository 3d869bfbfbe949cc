"""`--sync-every` and its options: what they come to, and what is refused before anything starts."""

import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.sync_options import SyncOptions
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import RunOptions, parse_devices


def test_differences_travel_in_half_the_bytes_for_nesterov_alone():
    assert SyncOptions(every=5).wire_dtype == "bfloat16"
    assert SyncOptions(every=5, outer_optimizer="none").wire_dtype == "float32"
    assert SyncOptions(every=5, dtype="float32").wire_dtype == "float32"
    assert not SyncOptions().is_on


def test_options_reach_the_worker():
    spec = WorkerSpec(rank=0, world_size=1, sync=SyncOptions(every=7, warmup=3, outer_momentum=0.5))
    assert WorkerSpec.from_environment(spec.to_environment()) == spec


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"every": 0}, "--sync-every"),
        ({"every": 5, "warmup": -1}, "--sync-warmup"),
        ({"every": 5, "outer_optimizer": "adam"}, "--outer-optimizer"),
        ({"every": 5, "outer_learning_rate": 0.0}, "--outer-learning-rate"),
        ({"every": 5, "outer_momentum": 1.0}, "--outer-momentum"),
        ({"every": 5, "dtype": "int8"}, "--sync-dtype"),
        ({"every": 5, "fragments": 6}, "--sync-fragments"),
        ({"every": 5, "delay": 5}, "--sync-delay"),
        ({"every": 5, "mixing": 1.0}, "--sync-mixing"),
        ({"warmup": 5}, "--sync-warmup"),
        ({"fragments": 2}, "--sync-fragments"),
        ({"delay": 2}, "--sync-delay"),
        ({"outer_optimizer": "none"}, "--outer-optimizer"),
        ({"outer_learning_rate": 0.5}, "--outer-learning-rate"),
        ({"outer_momentum": 0.5}, "--outer-momentum"),
        ({"dtype": "float32"}, "--sync-dtype"),
    ],
)
def test_options_that_cannot_work_are_named(fields, named):
    with pytest.raises(ConfigurationError) as error:
        SyncOptions(**fields)
    assert str(error.value).startswith(named)


@pytest.mark.parametrize("strategy", ["single", "mirrored", "parameter-server", "tpu"])
def test_strategies_without_weights_of_each_worker_are_refused(strategy):
    with pytest.raises(ConfigurationError) as error:
        RunOptions(target="train.py", strategy=strategy, sync=SyncOptions(every=5))
    assert f"--strategy {strategy}" in str(error.value)


def test_several_devices_of_a_worker_are_refused():
    devices = parse_devices("cpu:2")
    with pytest.raises(ConfigurationError) as error:
        RunOptions(target="train.py", devices=devices, workers=1, sync=SyncOptions(every=5))
    assert "--devices-per-worker" in str(error.value)


def test_horovod_exchanges_nothing_in_a_thread():
    with pytest.raises(ConfigurationError) as error:
        RunOptions(target="train.py", strategy="horovod", sync=SyncOptions(every=5, delay=2))
    assert str(error.value).startswith("--sync-delay")


@pytest.mark.parametrize("strategy", ["auto", "multiworker", "horovod"])
def test_other_strategies_are_accepted(strategy):
    RunOptions(target="train.py", strategy=strategy, sync=SyncOptions(every=5))
