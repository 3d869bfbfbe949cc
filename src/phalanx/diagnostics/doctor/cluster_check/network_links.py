"""The links between all nodes: measured one by one over plain connections, and judged."""

from __future__ import annotations

import os
import socket
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from phalanx.cluster.authenticated_connection import AuthenticatedListener, connect
from phalanx.diagnostics.doctor.all_reduce import in_bytes, in_seconds
from phalanx.diagnostics.doctor.result import Result, failed, ok, warning
from phalanx.launcher.rendezvous.store import RendezvousInfo

TIMEOUT = 10.0
"""Seconds without a byte after which a link counts as broken."""
_ROUND_TRIPS = 20
_CHUNK = 1 << 15
_MEASURED_SECONDS = 0.5
"""Seconds in which bytes are counted."""
_MAX_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class LinkMeasurement:
    """One direction of a link.

    Attributes:
        seconds: the median round trip time.
        longest: the longest round trip time.
        rate: bytes per second.
    """

    seconds: float
    longest: float
    rate: float


class LinkProbe:
    """Answers link measurements on all addresses of this host until it is closed."""

    def __init__(self, key: bytes) -> None:
        """Start to listen.

        Args:
            key: the secret that a client must know.

        Raises:
            OSError: there is no free port.
        """
        self._listener = AuthenticatedListener(("", 0), key=key, on_connection=self._serve)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._listener.port

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        with suppress(OSError, EOFError), connection:
            _set_timeouts(connection)
            while (request := connection.recv_bytes()) == b"ping":
                connection.send_bytes(request)
            end, chunk = time.monotonic() + _MAX_SECONDS, bytes(_CHUNK)
            while time.monotonic() < end:
                connection.send_bytes(chunk)


def measure(info: RendezvousInfo) -> LinkMeasurement:
    """Measure the link to the probe of another host.

    Raises:
        OSError, EOFError, AuthenticationError: the link is broken; the message says how.
    """
    with connect((info.host, info.port), key=info.key, timeout=TIMEOUT) as connection:
        _set_timeouts(connection)
        round_trips = [_round_trip(connection) for _ in range(_ROUND_TRIPS)]
        connection.send_bytes(b"bandwidth")
        return LinkMeasurement(
            seconds=statistics.median(round_trips),
            longest=max(round_trips),
            rate=_bandwidth(connection),
        )


def _round_trip(connection: Connection[Any, Any]) -> float:
    began = time.perf_counter()
    connection.send_bytes(b"ping")
    if not connection.poll(TIMEOUT):
        raise TimeoutError(f"no answer within {TIMEOUT:.0f} s")
    connection.recv_bytes()
    return time.perf_counter() - began


def _bandwidth(connection: Connection[Any, Any]) -> float:
    """Bytes per second; the first chunk only starts the clock."""
    came, began = 0, 0.0
    while not came or time.perf_counter() - began < _MEASURED_SECONDS:
        if not connection.poll(TIMEOUT):
            raise TimeoutError(
                f"few bytes come through, and many do not within {TIMEOUT:.0f} s (MTU?)"
            )
        chunk = len(connection.recv_bytes())
        if began:
            came += chunk
        else:
            began = time.perf_counter()
    return came / (time.perf_counter() - began)


def _set_timeouts(connection: Connection[Any, Any]) -> None:
    """Limit reads and writes in time, if a cable is pulled, and send small messages at once."""
    seconds = struct.pack("ll", int(TIMEOUT), 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


CHECK = "link"
_LATE = 3.0
_SLOW = 0.2
"""Factors of the median of all links, beyond which a link is reported."""
_LATE_ANYWHERE = 0.02
_SLOW_ANYWHERE = 12.5e6  # 100 Mbit/s
"""Seconds, and bytes per second, beyond which a link is slow whatever the others are."""
_NEVER_LATE = 0.002
"""Seconds that other work on a host may add."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of one link.

    Attributes:
        of: the node rank of the host that measured.
        to: the node rank of the host that answered.
        measured: the measurement; None if it failed, or was not tried.
        problem: why it failed.
    """

    of: int
    to: int
    measured: LinkMeasurement | None = None
    problem: str | None = None


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """All pairs of `count` hosts, in rounds whose pairs have no host in common.

    The circle method: https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method
    """
    hosts: list[int | None] = [*range(count), *([None] * (count % 2))]
    half = len(hosts) // 2
    for _ in range(len(hosts) - 1):
        pairs = zip(hosts[:half], reversed(hosts[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        hosts.insert(1, hosts.pop())


def judge(links: Sequence[Link], names: Sequence[str]) -> Iterator[Result]:
    """Findings about the links: each bad one, and a summary of the others.

    Args:
        links: all that were tried, one for each direction.
        names: the hosts, by node rank.
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
        usual = f"usually {in_seconds(trip)} round trip, {in_bytes(rate)}/s"
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
    """A link that is far slower than the median, or than any link should be."""
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
        f"slow: {of} ({both[0].of}) and {to} ({both[0].to}): {in_seconds(seconds)} round "
        f"trip{once}, {in_bytes(lowest)}/s; usual here are {in_seconds(trip)} and "
        f"{in_bytes(rate)}/s. Every step waits for the slowest link",
        f"on {of}: iperf3 -c {to} (iperf3 -s there); ping -c 20 {to}; ethtool shows the cards' "
        "speed and errors",
    )
