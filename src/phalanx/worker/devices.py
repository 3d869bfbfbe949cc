"""The devices and threads of this process, set before TensorFlow looks at them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.cluster.spec import DeviceSpec
from phalanx.errors import ConfigurationError

_MEGABYTES_OF_A_LOGICAL_GPU = 2048  # TensorFlow wants a limit: it is for trying things out


def limit_threads(threads: int) -> None:
    """Compute on this many threads.

    Two at least run whole operations side by side: with one, an all-reduce that waits for
    a peer could keep this worker from sending what that peer waits for.
    """
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))


def use_devices(devices: DeviceSpec) -> None:
    """Show TensorFlow the devices asked for, and split the CPU where several are.

    Raises:
        ConfigurationError: there are fewer GPUs than asked for.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if devices.kind == "logical-gpu":
        _split_gpu(gpus, devices.count)
        return
    if devices.kind == "gpu" or (devices.kind == "auto" and gpus):
        if len(gpus) < devices.count:
            raise ConfigurationError(
                f"Asked for {devices.count} GPUs in this worker; TensorFlow sees {len(gpus)}. "
                "Use fewer devices per worker or cpu:N, and see that TensorFlow is installed "
                "with GPU support (pip install phalanx[gpu])."
            )
        tf.config.set_visible_devices(gpus[: devices.count], "GPU")
        return
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(devices.count)]
    tf.config.set_logical_device_configuration(cpu, logical)


def _split_gpu(gpus: list[Any], count: int) -> None:
    """Make `count` logical devices of the first GPU."""
    if not gpus:
        raise ConfigurationError(
            f"Asked for {count} logical GPUs in this worker; TensorFlow sees no GPU to split. "
            "Use cpu:N, or see that TensorFlow is installed with GPU support."
        )
    each = tf.config.LogicalDeviceConfiguration(memory_limit=_MEGABYTES_OF_A_LOGICAL_GPU)
    tf.config.set_visible_devices(gpus[:1], "GPU")
    tf.config.set_logical_device_configuration(gpus[0], [each] * count)


def visible_devices() -> list[str]:
    """The devices that TensorFlow will use here, found without starting it."""
    seen = [device.name for device in tf.config.get_visible_devices()]
    return [name.rpartition("physical_device:")[2] for name in seen]


def local_devices() -> list[str]:
    """The devices of this process that a mirrored strategy uses: its GPUs, else its CPUs.

    They are found without starting TensorFlow: until that runs, a script may set its devices.
    """
    for kind in ("GPU", "CPU"):
        count = sum(
            len(tf.config.get_logical_device_configuration(device) or [device])
            for device in tf.config.get_visible_devices(kind)
        )
        if count:
            return [f"{kind}:{index}" for index in range(count)]
    raise AssertionError("TensorFlow shows no device, not even a CPU")
