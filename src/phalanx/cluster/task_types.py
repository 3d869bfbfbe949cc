"""Who does what in a worker group: all train in step, or a chief leads workers and servers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from phalanx.errors import ConfigurationError

Role = Literal["chief", "worker", "ps"]
"""A task's job in TF_CONFIG; "ps" is a parameter server, which keeps variables."""

DEFAULT_SHARDING = "min-size:1MiB"
_SIZES = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SHARDING = re.compile(
    r"(?:(?P<none>none)|min-size:(?P<size>\d+)(?P<unit>|kib|mib|gib)|fixed-shards:(?P<shards>\d+))",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class VariablePartitioning:
    """How variables are cut along their first axis and spread over the servers.

    Attributes:
        min_bytes: as many shards as there are servers, but none smaller than this; None for
            another rule.
        shards: this many shards of every variable; None for another rule.
    """

    min_bytes: int | None = None
    shards: int | None = None


def parse_sharding(text: str) -> VariablePartitioning:
    """`min-size:256KiB`, `fixed-shards:2` or `none` as a value.

    Raises:
        ConfigurationError: the text is none of these.
    """
    match = _SHARDING.fullmatch(text.strip())
    if match is not None and match["none"]:
        return VariablePartitioning()
    if match is not None and match["size"] and int(match["size"]) > 0:
        return VariablePartitioning(min_bytes=int(match["size"]) * _SIZES[match["unit"].lower()])
    if match is not None and match["shards"] and int(match["shards"]) > 0:
        return VariablePartitioning(shards=int(match["shards"]))
    raise ConfigurationError(
        "--variable-partitioner must be min-size:BYTES (such as min-size:256KiB), "
        f"fixed-shards:N or none; found {text!r}."
    )


def task_of(rank: int, world_size: int, servers: int) -> tuple[Role, int]:
    """The job of a rank and its index within that job.

    Without servers every rank is a worker; with them rank 0 is the chief and the last are the
    servers.
    """
    if not servers:
        return "worker", rank
    if rank == 0:
        return "chief", 0
    first_server = world_size - servers
    return ("worker", rank - 1) if rank < first_server else ("ps", rank - first_server)
