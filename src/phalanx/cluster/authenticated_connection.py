"""Connections between the processes of a run: both ends prove that they know the run's token.

`multiprocessing.connection` gives the connection and the proof (HMAC, a challenge from each end).
Nothing that a stranger sends is parsed, and what a stranger can take is limited: time, memory, and
the number of connections. https://docs.python.org/3/library/multiprocessing.html#authentication-keys
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias

AUTHENTICATION_TIMEOUT = 10.0
"""Seconds in which a connection has to prove that it knows the token."""
MAX_UNAUTHENTICATED = 64
"""Connections under way that have not proved it yet; one more ends the oldest of them."""
MAX_MESSAGE_BYTES = 16 << 20
"""The longest message that is read."""

_BACKLOG = 128
_AFTER_AN_ERROR = 0.1

OnConnection: TypeAlias = "Callable[[Connection[Any, Any]], None]"


class AuthenticatedListener:
    """Accepts connections of processes that know the key, each in a thread of its own.

    Attributes:
        port: where it listens.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        key: bytes,
        on_connection: OnConnection,
        timeout: float = AUTHENTICATION_TIMEOUT,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
    ) -> None:
        """Listen.

        Args:
            address: host and port; an empty host for all addresses (IPv4 and IPv6), port 0 for one
                that is free. An IPv6 address may have brackets.
            key: what a process must know.
            on_connection: gets each connection that has proved it, in a thread of its own.
            timeout: seconds for the proof.
            max_unauthenticated: connections without the proof at one time.

        Raises:
            OSError: the address is taken, or there is no free port.
        """
        self._key = key
        self._on_connection = on_connection
        self._timeout = timeout
        self._most = max_unauthenticated
        self._lock = threading.Lock()
        self._unproved: dict[int, Connection[Any, Any]] = {}
        self._number = 0
        self._is_open = True
        self._listener = _listen(address)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="phalanx-listener", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections; those that were accepted stay open."""
        self._is_open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends accept(), which close() does not
        self._listener.close()
        with self._lock:
            for number in list(self._unproved):
                self._end(number)

    def _accept(self) -> None:
        while self._is_open:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # out of file descriptors, or closed
                time.sleep(_AFTER_AN_ERROR)
                continue
            accepted.setblocking(True)
            connection: Connection[Any, Any] = Connection(accepted.detach())
            with self._lock:
                self._number += 1
                number = self._number
                self._unproved[number] = connection
                if len(self._unproved) > self._most:
                    self._end(next(iter(self._unproved)))
            threading.Thread(target=self._prove, args=(number, connection), daemon=True).start()

    def _prove(self, number: int, connection: Connection[Any, Any]) -> None:
        def authenticate() -> None:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)

        def expire() -> None:
            with self._lock:
                self._end(number)

        is_proved = _is_proved(authenticate, expire=expire, timeout=self._timeout)
        with self._lock:
            is_in_time = self._unproved.pop(number, None) is not None
        if is_proved and is_in_time:
            self._on_connection(connection)
        else:
            connection.close()

    def _end(self, number: int) -> None:
        """End what its thread waits for, which then closes it; call under the lock."""
        if (connection := self._unproved.pop(number, None)) is not None:
            shut_down(connection)


def connect(
    address: tuple[str, int], *, key: bytes, timeout: float = AUTHENTICATION_TIMEOUT
) -> Connection[Any, Any]:
    """A connection to an `AuthenticatedListener`.

    Args:
        address: host and port. An IPv6 address may have brackets.
        key: what both ends must know.
        timeout: seconds to reach it, and again for the proof: a stranger may have the port.

    Raises:
        OSError: no process can be reached there.
        AuthenticationError: no process that knows the key answers there.
    """
    host, port = address
    reached = socket.create_connection((without_brackets(host), port), timeout=timeout)
    reached.settimeout(None)
    connection: Connection[Any, Any] = Connection(reached.detach())

    def authenticate() -> None:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)

    if not _is_proved(authenticate, expire=lambda: shut_down(connection), timeout=timeout):
        connection.close()
        raise AuthenticationError(
            f"what listens at {join_address(host, port)} has not proved in {timeout:.0f} s that it "
            "knows the token of the run"
        )
    return connection


def join_address(host: str, port: int) -> str:
    """`host:port`, as TensorFlow and TF_CONFIG take it: `[fd00::1]:7000` for an IPv6 address."""
    bare = without_brackets(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def without_brackets(host: str) -> str:
    """The host as the socket module takes it: `fd00::1` for `[fd00::1]`."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = without_brackets(address[0]), address[1]
    if not host:
        if socket.has_dualstack_ipv6():
            with suppress(OSError):  # such as an IPv6 that the machine's settings switch off
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
                )
        return socket.create_server(("", port), backlog=_BACKLOG)
    found = {each[0] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    family = socket.AF_INET if socket.AF_INET in found else socket.AF_INET6
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def shut_down(connection: Connection[Any, Any]) -> None:
    """End a connection, and what other threads read or write there; it remains to be closed."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def _is_proved(
    authenticate: Callable[[], None], *, expire: Callable[[], None], timeout: float
) -> bool:
    """Whether the other end proves in time that it knows the key; `expire` must end the attempt."""
    timer = threading.Timer(timeout, expire)
    timer.daemon = True
    timer.start()
    try:
        authenticate()
    except (AuthenticationError, OSError, EOFError, AssertionError):
        return False  # the library asserts that a challenge looks like one
    finally:
        timer.cancel()
        timer.join()
    return True
