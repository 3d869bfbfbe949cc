"""One link between two hosts, measured by a plain connection: how long there and back, how much.

Every host listens, and measures towards others when it is asked. Both ends prove that they know the
info's token, as launchers do.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from phalanx.cluster.authenticated_connection import AuthenticatedListener, connect
from phalanx.launch.rendezvous.store import RendezvousInfo

PATIENCE = 10.0
"""Seconds without a byte after which a link counts as broken."""
_TRIPS = 20
_CHUNK = 1 << 15
_FLOOD = 0.5
"""Seconds that bytes are counted."""
_MOST_FLOOD = 30.0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One direction of a link.

    Attributes:
        seconds: there and back, in the middle of some.
        longest: the longest of them.
        rate: bytes a second that came.
    """

    seconds: float
    longest: float
    rate: float


class Probe:
    """Listens on all addresses of this host until it is closed."""

    def __init__(self, key: bytes) -> None:
        """Begin to listen.

        Args:
            key: what whoever connects must know.

        Raises:
            OSError: there is no free port.
        """
        self._listener = AuthenticatedListener(("", 0), key=key, on_connection=self._serve)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.port

    def close(self) -> None:
        """Take nobody in any more."""
        self._listener.close()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        with suppress(OSError, EOFError), connection:
            _be_impatient(connection)
            while (asked := connection.recv_bytes()) == b"there and back":
                connection.send_bytes(asked)
            end, chunk = time.monotonic() + _MOST_FLOOD, bytes(_CHUNK)
            while time.monotonic() < end:
                connection.send_bytes(chunk)


def measure(info: RendezvousInfo) -> Measured:
    """The link to a host whose probe listens there.

    Raises:
        OSError, EOFError, AuthenticationError: the link is broken; says how.
    """
    with connect((info.host, info.port), key=info.key, timeout=PATIENCE) as connection:
        _be_impatient(connection)
        trips = [_there_and_back(connection) for _ in range(_TRIPS)]
        connection.send_bytes(b"and now a flood")
        return Measured(
            seconds=statistics.median(trips), longest=max(trips), rate=_flood(connection)
        )


def _there_and_back(connection: Connection[Any, Any]) -> float:
    began = time.perf_counter()
    connection.send_bytes(b"there and back")
    if not connection.poll(PATIENCE):
        raise TimeoutError(f"no answer within {PATIENCE:.0f} s")
    connection.recv_bytes()
    return time.perf_counter() - began


def _flood(connection: Connection[Any, Any]) -> float:
    """Bytes a second; the first chunk only starts the clock."""
    came, began = 0, 0.0
    while not came or time.perf_counter() - began < _FLOOD:
        if not connection.poll(PATIENCE):
            raise TimeoutError(
                f"few bytes come through, and many do not within {PATIENCE:.0f} s (MTU?)"
            )
        chunk = len(connection.recv_bytes())
        if began:
            came += chunk
        else:
            began = time.perf_counter()
    return came / (time.perf_counter() - began)


def _be_impatient(connection: Connection[Any, Any]) -> None:
    """No read or write waits forever where the cable is pulled, and no small one for another."""
    seconds = struct.pack("ll", int(PATIENCE), 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
