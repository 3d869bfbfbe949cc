"""The nodes of a command: those of `--hosts`, or those that the environment names."""

from __future__ import annotations

import os

from phalanx.cluster.detect import detect
from phalanx.cluster.environments.host_list import from_hosts, node_rank, parse_hosts
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import ConfigurationError


def resolve_cluster(
    hosts: str | None, index: int | None, cluster: str
) -> ClusterEnvironment | None:
    """The nodes that `--hosts`, `--node-rank` and `--cluster` name; None for this host alone.

    Raises:
        ConfigurationError: they do not go together.
        ClusterError: what the environment says cannot be used.
    """
    if hosts is None and index is not None:
        raise ConfigurationError(f"--node-rank {index} is an index in --hosts: give both.")
    if hosts is not None:
        index = node_rank(os.environ) if index is None else index
        return from_hosts(parse_hosts(hosts), index, LocalHost.here())
    return detect(os.environ, me=LocalHost.here(), kind=cluster)
