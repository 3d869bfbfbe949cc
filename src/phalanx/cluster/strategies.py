"""The strategies by name: what can be known of them without TensorFlow.

A new strategy is a line here and a file in `phalanx/worker/strategies/`.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import ConfigurationError

StrategyName = str
"""One of `STRATEGY_NAMES`."""


@dataclass(frozen=True, kw_only=True)
class StrategyInfo:
    """One strategy.

    Attributes:
        name: its word on the command line.
        trains_on: what trains together, for messages.
        many_workers: whether several worker processes can train under it.
        many_devices: whether one worker may have several devices.
        networked: whether TensorFlow connects its workers, so that even one needs an address.
        communication_backends: the ways in which its replicas can add up, by name, besides "auto".
    """

    name: str
    trains_on: str
    many_workers: bool
    many_devices: bool
    networked: bool = False
    communication_backends: tuple[str, ...] = ()


KINDS: tuple[StrategyInfo, ...] = (
    StrategyInfo(
        name="single",
        trains_on="one device",
        many_workers=False,
        many_devices=False,
    ),
    StrategyInfo(
        name="mirrored",
        trains_on="the devices of one process",
        many_workers=False,
        many_devices=True,
        communication_backends=("nccl", "hierarchical", "one-device"),
    ),
    StrategyInfo(
        name="multiworker",
        trains_on="one device of each worker",
        many_workers=True,
        many_devices=False,
        networked=True,
        communication_backends=("ring", "nccl"),
    ),
    StrategyInfo(
        name="horovod",
        trains_on="one device of each worker",
        many_workers=True,
        many_devices=False,
    ),
    StrategyInfo(
        name="parameter-server",
        trains_on="workers that train each at its own pace, and servers",
        many_workers=True,
        many_devices=False,
        networked=True,
    ),
    StrategyInfo(
        name="tpu",
        trains_on="the TPU of one process",
        many_workers=False,
        many_devices=False,
    ),
)

STRATEGY_NAMES: tuple[StrategyName, ...] = ("auto", *(kind.name for kind in KINDS))
COMMUNICATION_NAMES: tuple[str, ...] = (
    "auto",
    *dict.fromkeys(name for kind in KINDS for name in kind.communication_backends),
)


def strategy_info(name: StrategyName) -> StrategyInfo | None:
    """The strategy of that name; None for "auto", which is not decided yet."""
    return next((kind for kind in KINDS if kind.name == name), None)


def check_communication(communication_backend: str, strategy: StrategyName) -> None:
    """Refuse a way to communicate that the strategy does not have.

    Raises:
        ConfigurationError: says which names it has, or which strategies have that way.
    """
    if communication_backend == "auto":
        return
    kind = strategy_info(strategy)
    if kind is not None and communication_backend in kind.communication_backends:
        return
    if kind is None or communication_backend not in COMMUNICATION_NAMES:
        known = "; ".join(
            f"{k.name} has {', '.join(k.communication_backends)}" for k in _with_a_choice()
        )
        raise ConfigurationError(
            f"Asked for communication {communication_backend!r} under strategy {strategy!r}. "
            f"Name a strategy that has it: {known}."
        )
    takes = " or ".join(("auto", *kind.communication_backends))
    raise ConfigurationError(
        f"Asked for communication {communication_backend!r}, but the {strategy} strategy takes "
        f"{takes}."
    )


def check_gpus(communication_backend: str, gpus: int) -> None:
    """Refuse NCCL where there is no GPU.

    Raises:
        ConfigurationError: there is none.
    """
    if communication_backend == "nccl" and gpus == 0:
        raise ConfigurationError(
            "Asked for communication 'nccl', which connects NVIDIA GPUs; found none. Leave it "
            "out, or see that CUDA_VISIBLE_DEVICES and --devices-per-worker allow GPUs."
        )


def _with_a_choice() -> list[StrategyInfo]:
    return [kind for kind in KINDS if kind.communication_backends]
