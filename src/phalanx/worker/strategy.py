"""`phalanx.strategy()`: the one strategy of this process, from its environment."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.tf_config import TFConfig
from phalanx.errors import OptionError
from phalanx.worker.choice import Choice, Kind, check_name, choose_alone, choose_for_worker

_log = logging.getLogger("phalanx")


@dataclass(frozen=True, kw_only=True)
class _Made:
    """The strategy that exists in this process."""

    kind: Kind
    strategy: Any
    launched: bool


_made: _Made | None = None


def strategy(name: str = "auto") -> Any:
    """The `tf.distribute.Strategy` to train under, made once in each process.

    Under `phalanx run` it is the launcher's, whatever name the script gives: the command
    line decides. Elsewhere "auto" is "multiworker" if TF_CONFIG names several workers,
    "mirrored" if there are several GPUs, else "single", TensorFlow's default strategy.

    Args:
        name: "auto", "single", "mirrored" (all devices of this process) or "multiworker".

    Raises:
        OptionError: there is no such strategy, or another one exists in this process.
        ClusterError: TF_CONFIG contradicts itself.
    """
    asked = check_name(name)
    if _made is not None:
        if asked not in ("auto", _made.kind):
            if not _made.launched:
                raise OptionError(
                    f"Asked for the {asked!r} strategy, but this process trains under "
                    f"{_made.kind!r} already, and it can have only one. Ask for the same name "
                    "everywhere, or for none."
                )
            _log.info("phalanx run decides: %s, where the script asked for %s", _made.kind, asked)
        return _made.strategy
    import tensorflow as tf

    from phalanx.worker.devices import local_devices

    choice = choose_alone(
        asked,
        TFConfig.from_environment(os.environ),
        len(local_devices()),
        len(tf.config.list_logical_devices("GPU")),
    )
    return _make(choice, launched=False)


def make_for_worker(spec: WorkerSpec) -> Any:
    """Make the strategy that the launcher asked for, before the script runs.

    TensorFlow wants a multi-worker strategy made before any of its other functions is
    called, so the devices are counted only where that can decide something.
    """
    from phalanx.worker.devices import local_devices

    decided = spec.strategy != "auto" or spec.world_size > 1
    return _make(choose_for_worker(spec, 1 if decided else len(local_devices())), launched=True)


def made_kind() -> Kind | None:
    """The kind of the strategy that exists in this process; None before there is one."""
    return _made.kind if _made is not None else None


def _make(choice: Choice, *, launched: bool) -> Any:
    global _made
    made = _build(choice.kind)
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


def _build(kind: Kind) -> Any:
    import tensorflow as tf

    from phalanx.worker.devices import local_devices

    if kind == "multiworker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy(local_devices())
    return tf.distribute.get_strategy()
