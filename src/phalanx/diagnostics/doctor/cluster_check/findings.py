"""Findings about all nodes together: versions, clocks, host names, the shared directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from phalanx.cluster.local_host import is_address
from phalanx.diagnostics.doctor.all_reduce import BYTES, Speed, in_bytes, in_seconds
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning
from phalanx.monitoring.communication_advice import Advice, StepCosts, advise, of_a_link


@dataclass(frozen=True, kw_only=True)
class HostName:
    """A host name, as one host resolves it.

    Attributes:
        name: of some host.
        own: whether it is the name of the host that resolves it.
        address: the first address; None if there is none.
        back: the name of that address; None if it has none.
        problem: why there is no address.
    """

    name: str
    own: bool = False
    address: str | None = None
    back: str | None = None
    problem: str | None = None

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> HostName:
        """From JSON."""
        return cls(**fields)


def resolve_names(hosts: Sequence[str], index: int) -> list[HostName]:
    """Resolve those hosts that are names, and not addresses, on this host.

    Args:
        hosts: names or addresses.
        index: the node rank of this host.
    """
    return [
        _resolve(host, own=at == index)
        for at, host in enumerate(hosts)
        if host and not is_address(host)
    ]


def _resolve(name: str, *, own: bool) -> HostName:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as problem:
        return HostName(name=name, own=own, problem=str(problem))
    address = str(found[0][4][0])
    try:
        back = socket.gethostbyaddr(address)[0]
    except OSError:
        back = None
    return HostName(name=name, own=own, address=address, back=back)


_SKEW = 1.0
"""Seconds; times in records and logs are compared with about this precision."""


def versions(of_hosts: Mapping[str, Mapping[str, str]]) -> Iterator[Result]:
    """Whether all hosts have the same version of each package as the first."""
    hosts = list(of_hosts)
    first = of_hosts[hosts[0]]
    differ = False
    for host in hosts[1:]:
        theirs = of_hosts[host]
        for package in sorted({*first, *theirs}):
            here, there = first.get(package), theirs.get(package)
            if here != there:
                differ = True
                yield failed(
                    "versions",
                    f"{package} is {there or 'missing'} on {host} and {here or 'missing'} on "
                    f"{hosts[0]}",
                    _same(package, here, host, hosts[0]),
                )
    if not differ:
        yield ok("versions", f"the same on all {len(hosts)} hosts")


def _same(package: str, wanted: str | None, host: str, first: str) -> str:
    if package == "python":
        return f"use Python {wanted} on {host} too"
    if wanted is None:
        return f"on {first}, or uninstall it on {host}: pip install {package}"
    return f"on {host}: pip install {package}=={wanted}"


def clocks(ahead: Mapping[str, float], sure: float) -> Iterator[Result]:
    """How far clocks differ from the first host's.

    Args:
        ahead: seconds that each host's clock is ahead of the first's.
        sure: the error of that in seconds: half of the longest round trip.
    """
    for host, seconds in ahead.items():
        if abs(seconds) > _SKEW + sure:
            which = "ahead of" if seconds > 0 else "behind"
            yield warning(
                "clock",
                f"{host} is {abs(seconds):.1f} s {which} the first host: times in logs and records "
                "do not fit together, and storage may refuse what is signed",
                f"on {host}: timedatectl set-ntp true",
            )
    most = max((abs(seconds) for seconds in ahead.values()), default=0.0)
    yield ok("clock", f"at most {in_seconds(most)} apart, to {in_seconds(sure)}")


def names(known: Mapping[str, Sequence[HostName]]) -> Iterator[Result]:
    """Whether each host resolves the names of all.

    Args:
        known: the names as each host resolves them, by host.
    """
    count, bad = 0, False
    for host, found in known.items():
        for one in found:
            count += 1
            result = _name(host, one)
            if result is not None:
                bad = True
                yield result
    if count and not bad:
        yield ok("names", "each host knows those of all, and their addresses' names")
    elif not count:
        yield ok("names", "the hosts are called by their addresses")


def _name(host: str, one: HostName) -> Result | None:
    fix = f"on {host}: echo 'ADDRESS {one.name}' >> /etc/hosts, or fix the name server"
    if one.address is None:
        return failed("names", f"{host} does not know {one.name}: {one.problem}", fix)
    if one.address.startswith(("127.", "::1")) and not one.own:
        what = f"{host} takes {one.name} for {one.address}, which is {host} itself"
        return failed("names", what, fix)
    if one.back is None and not one.own:
        what = f"{host} knows {one.name} as {one.address}, and no name for that address"
        return warning("names", what, fix)
    return None


def communication(
    speed: Speed, parameters: int, workers: int, step: StepCosts | None
) -> tuple[Result, list[Advice]]:
    """Which options of `phalanx run` would shorten a step over the slowest link.

    Args:
        speed: of the slowest all-reduce.
        parameters: of the model, unless `step` knows its bytes.
        workers: how many there are.
        step: what a step costs elsewhere; None for one that computes as long as it sends.
    """
    size = parameters * BYTES if step is None or step.bytes is None else step.bytes
    known = step or StepCosts(compute=0.0, communication=0.0)
    costs = of_a_link(known, seconds=speed.seconds, rate=speed.rate, size=size, workers=workers)
    how = f"{in_seconds(costs.compute + costs.other)} of computing"
    if step is None:
        costs = replace(costs, compute=costs.transfer)
        how = "as long for computing (--step-seconds or --step-of says how long yours is)"
    what = (
        f"{in_bytes(size)} of gradients take {in_seconds(costs.transfer)} of a step on {workers} "
        f"workers; with {how} a step takes {in_seconds(costs.step)}"
    )
    found = advise(costs)
    better = [f"{each.options}: {in_seconds(each.step)} (-{each.gain:.0%})" for each in found]
    fix = f"phalanx run {'; '.join(better)}" if better else None
    return ok("communication", what, fix), found


def directory(path: str, seen: Mapping[str, str | None]) -> Iterator[Result]:
    """Whether each host reads what others write to the shared directory.

    Args:
        path: of all runs.
        seen: the error of each host; None if there is none.
    """
    fix = "give --run-dir a path that all hosts share (NFS, Lustre): mount | grep DIRECTORY"
    for host, trouble in seen.items():
        if trouble is not None:
            yield failed("shared directory", f"{path} on {host}: {trouble}", fix)
    if not any(seen.values()):
        yield ok("shared directory", f"{path}: each of {len(seen) + 1} hosts reads and writes it")
