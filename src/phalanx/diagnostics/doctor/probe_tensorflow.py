"""What TensorFlow and Horovod say of this machine, as a line of JSON; a process of its own."""

from __future__ import annotations

import sys

from phalanx.diagnostics.doctor.cuda_libraries import libraries
from phalanx.diagnostics.doctor.machine import TensorFlowInfo


def main() -> int:
    """Print the answer."""
    print(ask().to_json())
    return 0


def ask() -> TensorFlowInfo:
    """The answer; loads TensorFlow."""
    try:
        import keras  # noqa: F401  # the two must load together
        import tensorflow as tf

        gpus = tuple(device.name for device in tf.config.list_physical_devices("GPU"))
    except Exception as error:  # a library that does not load raises what it likes
        return TensorFlowInfo(error=f"{type(error).__name__}: {str(error)[:300]}")
    has_cuda = bool(tf.test.is_built_with_cuda())
    return TensorFlowInfo(
        gpus=gpus,
        has_cuda=has_cuda,
        horovod=_horovod(),
        libraries=tuple(libraries()) if has_cuda else (),
    )


def _horovod() -> str:
    from phalanx.errors import ConfigurationError
    from phalanx.horovod.library import is_installed, load

    if not is_installed():
        return "missing"
    try:
        library = load()
    except ConfigurationError as error:
        return str(error)
    built = {"gloo": library.gloo_built(), "mpi": library.mpi_built(), "nccl": library.nccl_built()}
    return ", ".join(name for name, is_built in built.items() if is_built)


if __name__ == "__main__":
    sys.exit(main())
