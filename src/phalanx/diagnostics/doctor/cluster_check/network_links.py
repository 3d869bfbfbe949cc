"""The links between all hosts: in which order they are measured, and which of them is bad."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.cluster.local_host import is_address
from phalanx.diagnostics.doctor.all_reduce_cost import in_bytes, in_seconds
from phalanx.diagnostics.doctor.cluster_check.bandwidth import Measured
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning

CHECK = "link"
_LATE = 3.0
_SLOW = 0.2
"""Of what is usual here: a link that is further off stands out."""
_LATE_ANYWHERE = 0.02
_SLOW_ANYWHERE = 12.5e6  # 100 Mbit/s
"""Seconds, and bytes a second, that make a link slow whatever the others are."""
_NEVER_LATE = 0.002
"""Seconds that other work on a host may cost."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of one link.

    Attributes:
        of: the index of the host that measured.
        to: the index of the host that answered.
        measured: what it is like; None where it does not work, or was not tried.
        problem: why it does not work.
    """

    of: int
    to: int
    measured: Measured | None = None
    problem: str | None = None


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """All pairs of so many hosts, such that those of one round have no host in common.

    The circle method: https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method
    """
    hosts: list[int | None] = [*range(count), *([None] * (count % 2))]
    half = len(hosts) // 2
    for _ in range(len(hosts) - 1):
        pairs = zip(hosts[:half], reversed(hosts[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        hosts.insert(1, hosts.pop())


def judge(links: Sequence[Link], names: Sequence[str]) -> Iterator[Result]:
    """What is to be said of the links: each bad one, and all others together.

    Args:
        links: all that were tried, a direction each.
        names: the hosts, by index.
    """
    pairs: dict[tuple[int, int], list[Link]] = {}
    for link in links:
        pairs.setdefault((min(link.of, link.to), max(link.of, link.to)), []).append(link)
    whole = [one.measured for one in links if one.measured is not None]
    trip = statistics.median(one.seconds for one in whole) if whole else 0.0
    rate = statistics.median(one.rate for one in whole) if whole else 0.0
    bad = 0
    for both in pairs.values():
        result = _broken(both, names) or _slow(both, names, trip, rate)
        if result is not None:
            bad += 1
            yield result
    if whole:
        which = f"{len(pairs) - bad} of {len(pairs)}" if bad else f"{len(pairs)}"
        usual = f"usually {in_seconds(trip)} there and back, {in_bytes(rate)}/s"
        yield ok(CHECK, f"{which} between {len(names)} hosts are as they should be: {usual}")


def _broken(both: Sequence[Link], names: Sequence[str]) -> Result | None:
    errors = [link for link in both if link.problem is not None]
    if not errors:
        return None
    first = errors[0]
    of, to = names[first.of], names[first.to]
    what = f"{of} ({first.of}) does not reach {to} ({first.to})"
    if len(errors) > 1:
        what = f"{of} ({first.of}) and {to} ({first.to}) do not reach each other"
    return failed(
        CHECK,
        f"broken: {what}: {first.problem}",
        f"on {of}: ping -c 3 {to}; ip route get {to}; see that no firewall closes the ports above "
        "1024 between the two",
    )


def _slow(both: Sequence[Link], names: Sequence[str], trip: float, rate: float) -> Result | None:
    """A link that is far slower than is usual here, or than any should be."""
    found = [one.measured for one in both if one.measured is not None]
    seconds, lowest = max(one.seconds for one in found), min(one.rate for one in found)
    is_late = seconds > min(_LATE_ANYWHERE, max(_LATE * trip, trip + _NEVER_LATE))
    is_slow = lowest < max(_SLOW_ANYWHERE, _SLOW * rate)
    if not (is_late or is_slow):
        return None
    longest = max(one.longest for one in found)
    once = f" (once {in_seconds(longest)})" if longest > 10 * seconds else ""
    of, to = names[both[0].of], names[both[0].to]
    return warning(
        CHECK,
        f"slow: {of} ({both[0].of}) and {to} ({both[0].to}): {in_seconds(seconds)} there and "
        f"back{once}, {in_bytes(lowest)}/s; usual here are {in_seconds(trip)} and "
        f"{in_bytes(rate)}/s. Every step waits for the slowest link",
        f"on {of}: iperf3 -c {to} (iperf3 -s there); ping -c 20 {to}; ethtool tells of the cards' "
        "speed and errors",
    )


@dataclass(frozen=True, kw_only=True)
class Known:
    """A name, as one host knows it.

    Attributes:
        name: of some host.
        own: whether it is that host's own.
        address: its first one; None where it has none.
        back: the name of that address; None where it has none.
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
    def from_fields(cls, fields: Mapping[str, Any]) -> Known:
        """From JSON."""
        return cls(**fields)


def know(hosts: Sequence[str], index: int) -> list[Known]:
    """What this host makes of those that are names, and no addresses.

    Args:
        hosts: names or addresses.
        index: which is this one.
    """
    return [
        _know(host, own=at == index)
        for at, host in enumerate(hosts)
        if host and not is_address(host)
    ]


def _know(name: str, *, own: bool) -> Known:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as problem:
        return Known(name=name, own=own, problem=str(problem))
    address = str(found[0][4][0])
    try:
        back = socket.gethostbyaddr(address)[0]
    except OSError:
        back = None
    return Known(name=name, own=own, address=address, back=back)
