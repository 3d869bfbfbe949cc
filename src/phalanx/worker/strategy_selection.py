"""Which strategy fits the environment; no TensorFlow needed to decide."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.strategies import STRATEGY_NAMES, StrategyName
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.cluster.tpu import TpuEndpoint
from phalanx.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A kind of strategy, by name and no longer "auto", and why it is this one."""

    kind: StrategyName
    reason: str


def check_name(name: str) -> StrategyName:
    """The name as a strategy's name.

    Raises:
        ConfigurationError: there is no such strategy.
    """
    if name in STRATEGY_NAMES:
        return name
    raise ConfigurationError(f"A strategy is one of {', '.join(STRATEGY_NAMES)}; found {name!r}.")


def choose_for_worker(
    spec: WorkerSpec, local_devices: int, tpu: TpuEndpoint | None = None
) -> Choice:
    """The strategy of a worker that `phalanx run` started."""
    if spec.independent:
        return Choice(kind="single", reason="the workers of this command are independent")
    if spec.strategy != "auto":
        return Choice(kind=spec.strategy, reason=f"phalanx run --strategy {spec.strategy}")
    if spec.world_size > 1:
        return Choice(
            kind="multiworker",
            reason=f"this is worker {spec.rank} of {spec.world_size} of phalanx run",
        )
    return _by_devices(local_devices, tpu)


def choose_alone(
    name: StrategyName,
    config: TFConfig | None,
    gpus: int,
    *,
    horovod_size: int = 0,
    tpu: TpuEndpoint | None = None,
) -> Choice:
    """The strategy of a process that Phalanx has not launched.

    Only several GPUs make "auto" mirrored: logical CPUs here are the script's own business,
    and to count them would start TensorFlow, too early for "multiworker".
    """
    if name != "auto":
        return Choice(kind=name, reason="the script asks for it")
    if horovod_size > 1:
        return Choice(kind="horovod", reason=f"horovodrun started {horovod_size} processes")
    if config is not None and config.synchronous_tasks > 1:
        if config.task_type not in ("chief", "worker"):
            raise ConfigurationError(
                f"TF_CONFIG makes this process {config.task_type} {config.task_index}, which "
                "trains with no other worker. Start it only on the chief and the workers."
            )
        return Choice(
            kind="multiworker",
            reason=f"TF_CONFIG makes this {config.task_type} {config.task_index} of "
            f"{config.synchronous_tasks} workers",
        )
    return _by_devices(gpus, tpu)


def check_one_gpu(
    gpus: int, config: TFConfig | None, *, launched: bool, script: str | None
) -> None:
    """Refuse several GPUs in one worker, which would leave all but one idle.

    Args:
        gpus: how many this process sees.
        config: its TF_CONFIG.
        launched: whether `phalanx run` has started it.
        script: what it runs; None in a notebook or at Python's prompt.

    Raises:
        ConfigurationError: there are several; names the command that uses them.
    """
    if gpus < 2:
        return
    if launched:
        raise ConfigurationError(
            f"A worker trains on one device; this one sees {gpus} GPUs, which phalanx run did not "
            "find and so did not share out. Name them for it: CUDA_VISIBLE_DEVICES="
            f"{','.join(map(str, range(gpus)))} phalanx run --workers {gpus} ..."
        )
    found = f"this process sees {gpus} GPUs"
    command = f"phalanx run --workers {gpus} {script or 'SCRIPT'}"
    if script is None and config is None:
        command = f"phalanx.launch(FUNCTION, workers={gpus})"
    elif config is not None:
        found = f"TF_CONFIG makes this {config.task_type} {config.task_index}, and {found}"
        tasks = [address for job in config.cluster.values() for address in job]
        hosts = {address.rpartition(":")[0] for address in tasks}
        if len(hosts) > 1:
            command = f"phalanx run {script or 'SCRIPT'}, on each of the {len(hosts)} hosts"
        else:
            command = f"env -u TF_CONFIG {command}, once"
    raise ConfigurationError(
        f"The multiworker strategy has one device a worker; {found}. Let the launcher start a "
        f"worker for each GPU: {command}. Or let each process see one, by CUDA_VISIBLE_DEVICES."
    )


def _by_devices(count: int, tpu: TpuEndpoint | None) -> Choice:
    if tpu is not None:
        return Choice(kind="tpu", reason=tpu.reason)
    if count > 1:
        return Choice(kind="mirrored", reason=f"there are {count} devices here")
    return Choice(kind="single", reason="there is one worker with one device")
