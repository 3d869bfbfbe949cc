"""Canaries of tf.config, and what is answered where TensorFlow refuses."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError, StartedError
from phalanx.worker import late_settings

SETTINGS = (
    "set_logical_device_configuration",
    "set_visible_devices",
    "set_memory_growth",
    "set_intra_op_parallelism_threads",
    "set_inter_op_parallelism_threads",
)


@pytest.fixture
def started(mirrored2):
    """TensorFlow runs, with three logical CPUs, and late settings are answered."""
    tf.config.list_logical_devices()
    with late_settings.answer_late_settings():
        yield


@pytest.fixture
def received(caplog):
    caplog.set_level("INFO", logger="phalanx")
    return caplog


def cpu():
    return tf.config.list_physical_devices("CPU")[0]


def logical(count, limit=None):
    return [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * count


def gpu(index=0):
    return SimpleNamespace(name=f"/physical_device:GPU:{index}", device_type="GPU")


def test_tensorflow_refuses_by_a_runtime_error_once_it_runs(mirrored2):
    tf.config.list_logical_devices()
    with pytest.raises(RuntimeError, match="cannot be modified after"):
        tf.config.set_logical_device_configuration(cpu(), logical(7))
    with pytest.raises(RuntimeError, match="cannot be modified after"):
        tf.config.set_visible_devices([], "CPU")
    with pytest.raises(RuntimeError, match="cannot be modified after"):
        tf.config.threading.set_intra_op_parallelism_threads(77)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_public_home_is_answered_and_taken_back(name):
    before = {home: vars_of(home, name) for home in late_settings.public_homes()}
    assert any(value is not None for value in before.values())
    with late_settings.answer_late_settings():
        for home, value in before.items():
            assert value is None or getattr(home, name) is not value
    assert {home: vars_of(home, name) for home in before} == before


def vars_of(home, name):
    return getattr(home, name, None)


def test_what_holds_is_no_news(started, received):
    tf.config.set_logical_device_configuration(cpu(), logical(3))
    tf.config.set_visible_devices([cpu()], "CPU")
    tf.config.experimental.set_visible_devices([cpu()])
    tf.compat.v1.config.experimental.set_virtual_device_configuration(cpu(), logical(3))
    assert received.text == ""


def test_another_number_of_devices(started, received):
    tf.config.set_logical_device_configuration(cpu(), logical(2))
    assert "3 logical CPU devices here, where set_logical_device_configuration asks for 2" in (
        received.text
    )


def test_wrong_arguments_are_tensorflows_business(started):
    with pytest.raises(ValueError, match="memory limit on CPU"):
        tf.config.set_logical_device_configuration(cpu(), logical(1, limit=10))


def test_hidden_devices_are_refused(started):
    with pytest.raises(StartedError, match=r"no CPU by set_visible_devices.* TensorFlow on CPU:0"):
        tf.config.set_visible_devices([], "CPU")
    assert issubclass(StartedError, ConfigurationError)
    assert issubclass(StartedError, RuntimeError)


@pytest.fixture
def on_a_gpu(monkeypatch, received):
    """A worker to which the launcher gave one GPU of two."""
    late = RuntimeError("cannot be modified after being initialized")

    def refuse(*args, **kwargs):
        raise late

    for name in ("set_logical_device_configuration", "set_visible_devices"):
        monkeypatch.setattr(tf.config, name, refuse)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [gpu(0)])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    with late_settings.answer_late_settings():
        yield


def test_another_gpu(on_a_gpu, received):
    tf.config.set_visible_devices(gpu(1), "GPU")
    assert "it sees GPU:0, where set_visible_devices asks for GPU:1" in received.text


def test_no_gpu(on_a_gpu):
    with pytest.raises(StartedError, match="train on CPUs by phalanx run --devices-per-worker cpu"):
        tf.config.set_visible_devices([], "GPU")


def test_a_memory_limit(on_a_gpu, received):
    tf.config.set_logical_device_configuration(gpu(), logical(1, limit=1024))
    assert "GPU:0 is used as one device; the memory limit of set_logical" in received.text
    assert "(1024 MB) is not set" in received.text


def test_memory_growth(on_a_gpu, received, monkeypatch):
    tf.config.experimental.set_memory_growth(gpu(), True)
    assert "phalanx run --env TF_FORCE_GPU_ALLOW_GROWTH=true" in received.text
    received.clear()
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    tf.config.experimental.set_memory_growth(gpu(), True)
    assert received.text == ""
