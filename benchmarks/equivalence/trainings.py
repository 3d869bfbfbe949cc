"""Train cases in processes of their own: on one device, mirrored, on several workers.

Plain Keras and Phalanx get the same model and data, under a strategy of the same kind. The
functions `fit`, `evaluate` and `predict` differ, and on several workers the class of the strategy:
Phalanx has its own.

On a GPU all replicas share one: two logical devices, or two processes. TF32 is off, and so is XLA,
which draws other random numbers and which Keras uses on one device alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from equivalence.cases import Outcome, by_phalanx, chosen, plain_keras, run
from phalanx.cluster.spec import DeviceSpec
from phalanx.testing import WorkerGroupFailedError, WorkerGroupTimeoutError, run_single, run_workers

REPLICAS = 2
_CHUNK = 12
_SECONDS_A_CASE = 30


@dataclass(frozen=True, kw_only=True)
class Crash:
    """How a training ended without an answer."""

    error: str
    message: str = ""


Result = Outcome | Crash
Kind = Literal["one", "mirrored", "multiworker"]


def on_one_device(names: Sequence[str], *, gpu: bool = False) -> dict[str, Result]:
    """Plain Keras on one device: what is right."""
    return _in_one_process(names, "one", "keras", DeviceSpec(kind="gpu") if gpu else None)


def mirrored(names: Sequence[str], system: str, *, gpu: bool = False) -> dict[str, Result]:
    """Two replicas in one process, on logical devices."""
    devices = DeviceSpec(count=REPLICAS, kind="logical-gpu" if gpu else "cpu")
    return _in_one_process(names, "mirrored", system, devices)


def multiworker(names: Sequence[str], system: str, *, gpu: bool = False) -> dict[str, Result]:
    """Two processes; what the chief got."""
    devices = DeviceSpec(kind="gpu") if gpu else None
    return _in_chunks(
        names,
        lambda part: run_workers(
            _train,
            REPLICAS,
            args=(part, "multiworker", system, gpu),
            strategy=None,
            devices=devices,
            **_limits(part),
        )[0],
    )


def _in_one_process(
    names: Sequence[str], kind: Kind, system: str, devices: DeviceSpec | None
) -> dict[str, Result]:
    gpu = devices is not None and devices.kind != "cpu"
    return _in_chunks(
        names,
        lambda part: run_single(
            _train, args=(part, kind, system, gpu), devices=devices, **_limits(part)
        ),
    )


def _limits(part: Sequence[str]) -> dict[str, Any]:
    growth = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # processes share a GPU
    return {"deadline": 30.0 + _SECONDS_A_CASE * len(part), "env": growth}


def _in_chunks(
    names: Sequence[str], train: Callable[[Sequence[str]], dict[str, Result]]
) -> dict[str, Result]:
    """Several cases a process; each on its own where one took the process down."""
    results: dict[str, Result] = {}
    for begin in range(0, len(names), _CHUNK):
        part = names[begin : begin + _CHUNK]
        try:
            results |= train(part)
        except (WorkerGroupFailedError, WorkerGroupTimeoutError):
            results |= {name: _alone(name, train) for name in part}
    return results


def _alone(name: str, train: Callable[[Sequence[str]], dict[str, Result]]) -> Result:
    try:
        return train([name])[name]
    except WorkerGroupFailedError as failed:
        return Crash(error=failed.first.type_name, message=failed.first.message)
    except WorkerGroupTimeoutError:
        return Crash(error="no end", message="still running when its time was over")


def _train(names: Sequence[str], kind: Kind, system: str, gpu: bool) -> dict[str, Result]:
    """In a worker: train these cases one after the other under one strategy."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    strategy = _strategy(kind, system, "GPU" if gpu else "CPU")
    results: dict[str, Result] = {}
    for name in names:
        try:
            results[name] = _train_one(name, strategy, system)
        except Exception as error:
            results[name] = Crash(error=type(error).__name__, message=str(error))
    return results


def _strategy(kind: Kind, system: str, device: str) -> Any:
    import tensorflow as tf

    if kind == "mirrored":
        one_device = tf.distribute.ReductionToOneDevice()  # NCCL takes no logical devices
        devices = [f"{device}:{i}" for i in range(REPLICAS)]
        return tf.distribute.MirroredStrategy(devices, cross_device_ops=one_device)
    if kind == "multiworker" and system == "phalanx":
        import phalanx

        return phalanx.strategy("multiworker", communication_backend="ring")
    if kind == "multiworker":
        ring = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    # A strategy has Keras leave XLA out, as it does with several replicas.
    return tf.distribute.OneDeviceStrategy("GPU:0") if device == "GPU" else None


def _train_one(name: str, strategy: Any, system: str) -> Outcome:
    case = chosen()[name]
    methods = plain_keras() if system == "keras" else by_phalanx()
    scope = strategy.scope if strategy else contextlib.nullcontext
    if case.scope_for_optimizer:
        with scope():
            return run(case, methods)

    def scoped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with scope():
                return method(*args, **kwargs)

        return call

    return run(case, {key: scoped(method) for key, method in methods.items()})
