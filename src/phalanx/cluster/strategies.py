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
        description: what trains together, for messages.
        multi_worker: whether several worker processes can train under it.
        multi_device: whether one worker may have several devices.
        needs_addresses: whether TensorFlow connects its workers, so that even one needs an address.
        uses_parameter_servers: whether workers train asynchronously and servers hold the variables.
        is_default: whether it is TensorFlow's default strategy, next to which a script may make
            others.
        communication_backends: names of its all-reduce implementations, besides "auto".
    """

    name: str
    description: str
    multi_worker: bool
    multi_device: bool = False
    needs_addresses: bool = False
    uses_parameter_servers: bool = False
    is_default: bool = False
    communication_backends: tuple[str, ...] = ()


STRATEGIES: tuple[StrategyInfo, ...] = (
    StrategyInfo(
        name="single",
        description="one device",
        multi_worker=False,
        is_default=True,
    ),
    StrategyInfo(
        name="mirrored",
        description="the devices of one process",
        multi_worker=False,
        multi_device=True,
        communication_backends=("nccl", "hierarchical", "one-device"),
    ),
    StrategyInfo(
        name="multiworker",
        description="one device of each worker",
        multi_worker=True,
        needs_addresses=True,
        communication_backends=("ring", "nccl"),
    ),
    StrategyInfo(
        name="horovod",
        description="one device of each worker",
        multi_worker=True,
    ),
    StrategyInfo(
        name="parameter-server",
        description="workers that train asynchronously, with parameter servers",
        multi_worker=True,
        needs_addresses=True,
        uses_parameter_servers=True,
    ),
    StrategyInfo(
        name="tpu",
        description="the TPU of one process",
        multi_worker=False,
    ),
)

STRATEGY_NAMES: tuple[StrategyName, ...] = ("auto", *(kind.name for kind in STRATEGIES))
COMMUNICATION_NAMES: tuple[str, ...] = (
    "auto",
    *dict.fromkeys(name for kind in STRATEGIES for name in kind.communication_backends),
)


def strategy_info(name: StrategyName) -> StrategyInfo | None:
    """The strategy of that name; None for "auto", which is not decided yet."""
    return next((kind for kind in STRATEGIES if kind.name == name), None)


def uses_parameter_servers(name: StrategyName) -> bool:
    """Whether workers train asynchronously under the strategy of that name."""
    info = strategy_info(name)
    return info is not None and info.uses_parameter_servers


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
    return [kind for kind in STRATEGIES if kind.communication_backends]
