import json

import pytest
import tensorflow as tf

import phalanx
from phalanx.cluster.spec import DeviceSpec, WorkerSpec
from phalanx.errors import ConfigurationError
from phalanx.testing import run_single
from phalanx.worker import strategy as home


@pytest.fixture(autouse=True)
def fresh(monkeypatch, mirrored2):
    """A process that has no strategy yet; the fixture has split its CPU."""
    monkeypatch.setattr(home, "_made", None)
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_alone_it_is_tensorflows_default():
    made = phalanx.strategy()
    assert made is tf.distribute.get_strategy()
    assert phalanx.strategy("single") is made


def test_mirrored_uses_all_logical_cpus_and_is_made_once():
    made = phalanx.strategy("mirrored")
    assert isinstance(made, tf.distribute.MirroredStrategy)
    assert made.num_replicas_in_sync == len(tf.config.list_logical_devices("CPU")) > 1
    assert phalanx.strategy() is phalanx.strategy("mirrored") is made


def replica_number(context):
    return tf.cast(context.replica_id_in_sync_group, tf.float32)


def totals_by_every_way():
    made = {}
    for communication_backend in ("auto", "hierarchical", "one-device"):
        home._made = None
        strategy = phalanx.strategy("mirrored", communication_backend=communication_backend)

        @tf.function
        def total(strategy=strategy):
            def replica():
                context = tf.distribute.get_replica_context()
                return context.all_reduce("SUM", tf.range(5.0) * (1.0 + replica_number(context)))

            return strategy.run(replica)

        first, _ = strategy.experimental_local_results(total())
        ops = strategy.extended._get_cross_device_ops(first)
        made[communication_backend] = first.numpy().tolist(), type(ops).__name__
    return made


@pytest.mark.process
def test_mirrored_replicas_add_up_by_the_way_asked_for():
    made = run_single(totals_by_every_way, devices=DeviceSpec(count=2, kind="cpu"), deadline=150)
    assert all(total == [0.0, 3.0, 6.0, 9.0, 12.0] for total, _ in made.values())
    assert made["hierarchical"][1] == "HierarchicalCopyAllReduce"
    assert made["one-device"][1] == "ReductionToOneDevice"


def test_hierarchical_copy_would_lose_an_odd_device():
    assert len(tf.config.list_logical_devices("CPU")) == 3
    with pytest.raises(ConfigurationError, match="'hierarchical' on 3 devices"):
        phalanx.strategy("mirrored", communication_backend="hierarchical")


def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(ConfigurationError, match="'nccl', which connects NVIDIA GPUs; found none"):
        phalanx.strategy("mirrored", communication_backend="nccl")


def test_a_way_that_the_strategy_has_not_is_refused():
    with pytest.raises(ConfigurationError, match="the mirrored strategy takes auto or nccl or"):
        phalanx.strategy("mirrored", communication_backend="ring")


def test_another_one_is_refused():
    phalanx.strategy("single")
    with pytest.raises(ConfigurationError, match=r"'mirrored' strategy.*under 'single' already"):
        phalanx.strategy("mirrored")


def test_several_gpus_and_a_tf_config_without_a_launcher(monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["GPU:0", "GPU:1"])
    with pytest.raises(
        ConfigurationError, match=r"worker 1, and this process sees 2 GPUs.*phalanx run "
    ):
        phalanx.strategy()


def test_an_unknown_name():
    with pytest.raises(ConfigurationError, match="found 'ring'"):
        phalanx.strategy("ring")


def test_the_launchers_word_holds(caplog):
    caplog.set_level("INFO", logger="phalanx")
    made = home.make_for_worker(WorkerSpec(rank=0, world_size=1, strategy="mirrored"))
    assert phalanx.strategy("multiworker") is made
    assert "phalanx run decides: mirrored, where the script asked for multiworker" in caplog.text
    assert "because phalanx run --strategy mirrored" in caplog.text


def test_the_launcher_counts_devices():
    home.make_for_worker(WorkerSpec(rank=0, world_size=1))
    assert home.made_info().name == "mirrored"


def test_no_tpu(monkeypatch):
    for name in ("TPU_NAME", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="Asked for the tpu strategy; found no TPU"):
        phalanx.strategy("tpu")


def why_the_tpu_is_refused():
    try:
        phalanx.strategy("tpu")
    except ConfigurationError as error:
        return str(error)


@pytest.mark.process
def test_a_tpu_that_tensorflow_does_not_reach():
    output = run_single(why_the_tpu_is_refused, env={"TPU_NAME": "local"}, deadline=150)
    assert "found TPU_NAME is local, but TensorFlow does not reach it" in output
