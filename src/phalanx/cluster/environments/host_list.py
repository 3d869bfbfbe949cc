"""Plain hosts: `--hosts a,b,c` with `--node-rank`, or PHALANX_HOSTS with PHALANX_NODE_RANK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import ClusterError

HOSTS, INDEX, JOB = "PHALANX_HOSTS", "PHALANX_NODE_RANK", "PHALANX_RUN_ID"


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers that PHALANX_HOSTS names.

    Raises:
        ClusterError: its index is not one of them, or it is not clear which is this machine.
    """
    text = environment.get(HOSTS, "").strip()
    if not text:
        return None
    return from_hosts(
        parse_hosts(text),
        node_rank(environment),
        me,
        job=environment.get(JOB) or None,
        detected_by=HOSTS,
    )


def node_rank(environment: Mapping[str, str]) -> int | None:
    """What PHALANX_NODE_RANK says; None where it is not set.

    Raises:
        ClusterError: it is not a number.
    """
    index = environment.get(INDEX, "").strip()
    if index and not index.isdecimal():
        raise ClusterError(
            f"PHALANX_NODE_RANK must be a number from 0, the rank of this host in PHALANX_HOSTS; "
            f"found {index!r}."
        )
    return int(index) if index else None


def parse_hosts(text: str) -> tuple[str, ...]:
    """`a,b,c` as names.

    Raises:
        ClusterError: one is empty, or has a port.
    """
    hosts = tuple(host.strip() for host in text.split(","))
    for host in hosts:
        has_port = host.count(":") == 1 or "]:" in host
        if not host or " " in host or has_port:
            raise ClusterError(
                f"--hosts must be names or addresses with commas between and no ports, such as "
                f"a,b,10.0.0.3; found {host!r} in {text!r}."
            )
    return hosts


def from_hosts(
    hosts: Sequence[str],
    index: int | None,
    me: LocalHost | None,
    *,
    job: str | None = None,
    detected_by: str = "--hosts",
) -> ClusterEnvironment:
    """The launchers on hosts that a person named.

    Args:
        hosts: names or addresses, the leader's first.
        index: the node rank of this host; None finds it by the machine's names and addresses.
        me: this machine; None uses `index` only.
        job: names the run, where it has a name.
        detected_by: where the names come from.

    Raises:
        ClusterError: the index is not one of the hosts, or this machine is none or several.
    """
    if index is not None:
        if not 0 <= index < len(hosts):
            raise ClusterError(
                f"--node-rank must be 0 to {len(hosts) - 1}, an index in {detected_by} "
                f"{','.join(hosts)}; found {index}."
            )
        return _node_group(
            hosts, index, job, f"{detected_by} has {len(hosts)} hosts, the index is {index}"
        )
    mine = [] if me is None else [at for at, host in enumerate(hosts) if me.is_host(host)]
    if len(mine) == 1:
        why = f"{hosts[mine[0]]} of {detected_by} is this machine"
        return _node_group(hosts, mine[0], job, why)
    requested = f"{detected_by} {','.join(hosts)}"
    if mine:
        several = ", ".join(f"{at} ({hosts[at]})" for at in mine)
        raise ClusterError(
            f"Several hosts of {requested} are this machine: {several}. Say which by --node-rank "
            "(or PHALANX_NODE_RANK)."
        )
    raise ClusterError(
        f"No host of {requested} is this machine, which is {_described(me)}. Say which it is by "
        "--node-rank (or PHALANX_NODE_RANK), or fix the names."
    )


def _node_group(hosts: Sequence[str], index: int, job: str | None, why: str) -> ClusterEnvironment:
    return ClusterEnvironment(hosts=tuple(hosts), index=index, kind="hosts", why=why, job=job)


def _described(me: LocalHost | None) -> str:
    if me is None:
        return "not known by name"
    return ", ".join((*sorted(me.names), *sorted(me.addresses)))
