"""torchrun and whatever else sets RANK, WORLD_SIZE and MASTER_ADDR.

https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.environments.rank_variables import rank_of
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import ClusterError

MARKS = ("RANK", "WORLD_SIZE")


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers, one for each rank; only the first one's host is known.

    A job script may export MASTER_ADDR and WORLD_SIZE for other programs; without a RANK that
    says nothing.

    Raises:
        ClusterError: the rank is not below the number of all, or MASTER_ADDR is missing.
    """
    if not all(name in environment for name in MARKS):
        return None
    rank, size = rank_of(environment, "RANK", "WORLD_SIZE")
    leader = environment.get("MASTER_ADDR", "").strip()
    if not leader:
        raise ClusterError(
            f"RANK is {rank} and WORLD_SIZE is {size}, but MASTER_ADDR is not set: it must be the "
            "host of rank 0. Set it, or unset RANK and WORLD_SIZE."
        )
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    hosts = (leader, *[""] * (size - 1))
    return ClusterEnvironment(
        hosts=hosts,
        index=rank,
        kind="torchrun",
        why=f"RANK is {rank} of {size}, MASTER_ADDR is {leader}",
        job=run if run not in ("", "none") else None,
    )
