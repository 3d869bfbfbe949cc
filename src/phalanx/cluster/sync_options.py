"""How often workers synchronize their weights, where that is not at every step, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from phalanx.errors import ConfigurationError

OuterOptimizerName = Literal["nesterov", "none"]
OUTER_OPTIMIZERS: tuple[OuterOptimizerName, ...] = get_args(OuterOptimizerName)
SyncDtype = Literal["auto", "float32", "bfloat16"]
SYNC_DTYPES: tuple[SyncDtype, ...] = get_args(SyncDtype)

_STRATEGIES = ("auto", "multiworker", "horovod")


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """Training in which each worker takes local steps, and all synchronize every so often.

    `outer_optimizer="nesterov"` is DiLoCo (Douillard et al. 2023, https://arxiv.org/abs/2311.08105):
    the model's optimizer trains between syncs, and Nesterov momentum acts on the difference of the
    weights. `outer_optimizer="none"` averages the weights: local SGD, or with `warmup` post-local
    SGD (Lin et al. 2020, https://arxiv.org/abs/1808.07217). `fragments` and `delay` synchronize
    parts of the weights while training continues, as Streaming DiLoCo (Douillard et al. 2025,
    https://arxiv.org/abs/2501.18512).

    Attributes:
        every: local steps from one sync to the next; None trains in step.
        warmup: so many steps of the training are in step before the first local one.
        outer_optimizer: what is done with the mean difference at a sync.
        outer_learning_rate: of `nesterov`.
        outer_momentum: of `nesterov`.
        dtype: in which differences travel; "auto" is bfloat16 for `nesterov`, else float32.
        fragments: parts of the weights, which synchronize at evenly spaced steps.
        delay: steps from sending a difference to applying the sum, in which training continues.
        mixing: with a delay, the share of its own weights that a worker keeps.

    Raises:
        ConfigurationError: a value, or two of them together, cannot work.
    """

    every: int | None = None
    warmup: int = 0
    outer_optimizer: OuterOptimizerName = "nesterov"
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    dtype: SyncDtype = "auto"
    fragments: int = 1
    delay: int = 0
    mixing: float = 0.5

    def __post_init__(self) -> None:
        if self.every is None:
            self._check_off()
            return
        if self.every < 1:
            raise ConfigurationError(f"--sync-every must be at least 1 step; found {self.every}.")
        if self.warmup < 0:
            raise ConfigurationError(f"--sync-warmup must be 0 or more; found {self.warmup}.")
        if self.outer_optimizer not in OUTER_OPTIMIZERS:
            raise ConfigurationError(
                f"--outer-optimizer must be one of {', '.join(OUTER_OPTIMIZERS)}; found "
                f"{self.outer_optimizer!r}."
            )
        if not 0 < self.outer_learning_rate < float("inf"):
            raise ConfigurationError(
                f"--outer-learning-rate must be more than 0; found {self.outer_learning_rate}."
            )
        if not 0 <= self.outer_momentum < 1:
            raise ConfigurationError(
                f"--outer-momentum must be from 0 to below 1; found {self.outer_momentum}."
            )
        if self.dtype not in SYNC_DTYPES:
            raise ConfigurationError(
                f"--sync-dtype must be one of {', '.join(SYNC_DTYPES)}; found {self.dtype!r}."
            )

        if not 1 <= self.fragments <= self.every:
            raise ConfigurationError(
                f"--sync-fragments must be from 1 to --sync-every {self.every}; found "
                f"{self.fragments}."
            )
        if not 0 <= self.delay < self.every:
            raise ConfigurationError(
                f"--sync-delay must be from 0 to below --sync-every {self.every}; found "
                f"{self.delay}."
            )
        if not 0 <= self.mixing < 1:
            raise ConfigurationError(
                f"--sync-mixing must be from 0 to below 1; found {self.mixing}."
            )

    @property
    def is_on(self) -> bool:
        """Whether there are local steps at all."""
        return self.every is not None

    @property
    def wire_dtype(self) -> str:
        """The dtype in which differences of float32 weights travel."""
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if self.outer_optimizer == "nesterov" else "float32"

    def check_strategy(self, strategy: str, devices: int = 1) -> None:
        """Refuse strategies whose workers have no weights of their own.

        Args:
            strategy: its name.
            devices: of each worker.

        Raises:
            ConfigurationError: says which option to change.
        """
        if not self.is_on:
            return
        if strategy not in _STRATEGIES:
            raise ConfigurationError(
                f"--sync-every {self.every} is for workers with weights of their own, as under "
                f"--strategy multiworker or horovod; found --strategy {strategy}. Leave one of "
                "them out."
            )
        if self.delay and strategy == "horovod":
            raise ConfigurationError(
                f"--sync-delay {self.delay} exchanges weights in a thread, which Horovod's "
                "operations do not allow; found --strategy horovod. Leave one of them out."
            )
        if devices > 1:
            raise ConfigurationError(
                f"--sync-every {self.every} takes local steps on workers with one device; found "
                f"{devices} devices for each worker. Leave out --devices-per-worker and start more "
                "workers."
            )

    def _check_off(self) -> None:
        default = SyncOptions.__dataclass_fields__
        for name, option in _OPTIONS.items():
            if getattr(self, name) != default[name].default:
                raise ConfigurationError(
                    f"{option} is about training that synchronizes every so often; found no "
                    "--sync-every. Give that as well."
                )


_OPTIONS = {
    "warmup": "--sync-warmup",
    "outer_optimizer": "--outer-optimizer",
    "outer_learning_rate": "--outer-learning-rate",
    "outer_momentum": "--outer-momentum",
    "dtype": "--sync-dtype",
    "fragments": "--sync-fragments",
    "delay": "--sync-delay",
    "mixing": "--sync-mixing",
}
