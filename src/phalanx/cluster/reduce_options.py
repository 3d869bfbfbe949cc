"""How workers add up gradients: in which pieces, and in which dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from phalanx.cluster.strategies import StrategyName, strategy_info
from phalanx.errors import ConfigurationError

ReduceDtype = Literal["bfloat16", "float16"]
REDUCE_DTYPES: tuple[ReduceDtype, ...] = get_args(ReduceDtype)


@dataclass(frozen=True, kw_only=True)
class ReduceOptions:
    """How the gradients of one step travel between workers.

    Attributes:
        bucket_mb: the size of a bucket, in MB of 10**6 bytes as the gradients travel; 0 for one
            piece, None for the automatic choice.
        reduce_dtype: the dtype in which wider gradients travel; None for their own.

    Raises:
        ConfigurationError: a value is out of range.
    """

    bucket_mb: float | None = None
    reduce_dtype: ReduceDtype | None = None

    def __post_init__(self) -> None:
        size = self.bucket_mb
        if size is not None and not (size >= 0 and math.isfinite(size)):
            raise ConfigurationError(f"--bucket-mb must be MB, or 0 for one piece; found {size}.")
        if self.reduce_dtype is not None and self.reduce_dtype not in REDUCE_DTYPES:
            raise ConfigurationError(
                f"--reduce-dtype must be one of {', '.join(REDUCE_DTYPES)}; "
                f"found {self.reduce_dtype!r}. Leave it out to add up in the gradient's own dtype."
            )


def check_reduce_options(options: ReduceOptions, strategy: StrategyName) -> None:
    """Refuse options that the strategy has no use for.

    Raises:
        ConfigurationError: says which option to leave out.
    """
    for option, value in (
        ("--bucket-mb", options.bucket_mb),
        ("--reduce-dtype", options.reduce_dtype),
    ):
        kind = strategy_info(strategy)
        if value is None or kind is None:
            continue
        if not kind.multi_worker or kind.uses_parameter_servers:
            raise ConfigurationError(
                f"{option} is for workers that add up their gradients; found --strategy "
                f"{strategy}, under which they do not. Leave it out, or use --strategy multiworker."
            )
    if strategy == "horovod" and options.reduce_dtype == "bfloat16":
        raise ConfigurationError(
            "Asked for --reduce-dtype bfloat16 under --strategy horovod, which cannot add up "
            "bfloat16. Use --reduce-dtype float16, or --strategy multiworker."
        )
