"""`phalanx.strategy()`: the one strategy of this process, from its environment."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.reduce_options import ReduceDtype, ReduceOptions, check_reduce_options
from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.strategies import (
    StrategyInfo,
    StrategyName,
    check_communication,
    strategy_info,
)
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.cluster.tpu import TpuEndpoint, autodetect_tpu, metadata_server
from phalanx.errors import ConfigurationError
from phalanx.worker.strategies.factory import StrategyRequest, make
from phalanx.worker.strategy_selection import Choice, check_name, choose_alone, choose_for_worker

_log = logging.getLogger("phalanx")


@dataclass(frozen=True, kw_only=True)
class _Made:
    """The strategy that exists in this process."""

    kind: StrategyName
    strategy: Any
    launched: bool


_made: _Made | None = None


def strategy(
    name: str = "auto",
    *,
    communication_backend: str = "auto",
    bucket_mb: float | None = None,
    reduce_dtype: ReduceDtype | None = None,
) -> Any:
    """The `tf.distribute.Strategy` to train under, made once in each process.

    Under `phalanx run` it is the launcher's, whatever name the script gives: the command
    line decides. Elsewhere "auto" is "horovod" under horovodrun, "multiworker" if TF_CONFIG
    names several workers, "tpu" on a machine that has one, "mirrored" if there are several GPUs,
    else "single", TensorFlow's default strategy.

    Args:
        name: "auto" or a strategy's name, as `phalanx run --strategy` takes it.
        communication_backend: how its replicas add up, as `phalanx run --communication-backend`
            takes it.
        bucket_mb: the size of the pieces in which gradients are added up, as `--bucket-mb` takes
            it; None chooses it by the size of the model.
        reduce_dtype: the dtype in which gradients travel, "bfloat16" or "float16"; None for their
            own.

    Raises:
        ConfigurationError: there is no such strategy, or another one exists in this process.
        ClusterError: TF_CONFIG contradicts itself.
    """
    requested = check_name(name)
    check_communication(communication_backend, requested)
    reduction = ReduceOptions(bucket_mb=bucket_mb, reduce_dtype=reduce_dtype)
    check_reduce_options(reduction, requested)
    if _made is not None:
        if requested not in ("auto", _made.kind):
            if not _made.launched:
                raise ConfigurationError(
                    f"Asked for the {requested!r} strategy, but this process trains under "
                    f"{_made.kind!r} already, and it can have only one. Ask for the same name "
                    "everywhere, or for none."
                )
            _log.info(
                "phalanx run decides: %s, where the script asked for %s", _made.kind, requested
            )
        return _made.strategy
    import tensorflow as tf

    choice = choose_alone(
        requested,
        TFConfig.from_environment(os.environ),
        len(tf.config.get_visible_devices("GPU")),
        horovod_size=int(os.environ.get("HOROVOD_SIZE", 0)),
        tpu=_tpu() if requested == "auto" else None,
    )
    request = StrategyRequest(communication_backend=communication_backend, reduction=reduction)
    return _make(choice, request, launched=False)


def make_for_worker(spec: WorkerSpec) -> Any:
    """Make the strategy that the launcher asked for, before the script runs.

    TensorFlow wants a multi-worker strategy made before any of its other functions is
    called, so the devices are counted only where that can decide something.
    """
    from phalanx.worker.devices import local_devices

    decided = spec.strategy != "auto" or spec.world_size > 1
    may_be_tpu = not decided and (spec.devices is None or spec.devices.kind == "auto")
    tpu = _tpu() if may_be_tpu else None
    counts = not decided and tpu is None
    choice = choose_for_worker(spec, len(local_devices()) if counts else 1, tpu)
    request = StrategyRequest(
        communication_backend=spec.communication_backend, reduction=spec.reduction, worker=spec
    )
    return _make(choice, request, launched=True)


def _tpu() -> TpuEndpoint | None:
    return autodetect_tpu(os.environ, metadata_server(os.environ))


def made_info() -> StrategyInfo:
    """What the strategy of this process can do.

    Raises:
        RuntimeError: there is none yet.
    """
    info = None if _made is None else strategy_info(_made.kind)
    if info is None:
        raise RuntimeError("No strategy was made in this process yet.")
    return info


def made_strategy() -> Any:
    """The strategy that exists in this process; None before there is one."""
    return _made.strategy if _made is not None else None


def _make(choice: Choice, request: StrategyRequest, *, launched: bool) -> Any:
    global _made
    made = make(choice.kind, request)
    _made = _Made(kind=choice.kind, strategy=made, launched=launched)
    replicas = made.num_replicas_in_sync
    _log.info(
        "strategy %s (%d replica%s), because %s",
        choice.kind,
        replicas,
        "" if replicas == 1 else "s",
        choice.reason,
    )
    return made
