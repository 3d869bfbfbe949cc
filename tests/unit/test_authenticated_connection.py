"""Listeners that strangers reach: silent ones, talking ones, many of them, and with any bytes."""

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.cluster.authenticated_connection import (
    MAX_UNAUTHENTICATED,
    AuthenticatedListener,
    connect,
    join_address,
)

KEY = b"the token of the run"
FRAME = struct.Struct("!i")


class Listening:
    """A listener that sends back what it receives, and what it has accepted."""

    def __init__(self, **options):
        self.accepted = []
        self.listener = AuthenticatedListener(
            ("127.0.0.1", 0), key=KEY, on_connection=self.serve, **options
        )
        self.address = ("127.0.0.1", self.listener.port)

    def serve(self, connection):
        self.accepted.append(connection)
        with suppress(EOFError, OSError):  # who only proves it and leaves
            connection.send_bytes(connection.recv_bytes(100))

    def answers(self):
        with connect(self.address, key=KEY) as connection:
            connection.send_bytes(b"here")
            assert connection.poll(30)
            return connection.recv_bytes() == b"here"

    def stranger(self):
        return socket.create_connection(self.address, timeout=30)

    def close(self):
        self.listener.close()
        for each in self.accepted:
            each.close()


@pytest.fixture
def listening():
    with closing(Listening()) as made:
        yield made


def ended(stranger):
    """Whether the listener ends the connection within a minute."""
    stranger.settimeout(60)
    try:
        while stranger.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


WORDS = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    FRAME.pack(5) + b"hello",
    FRAME.pack(-5),
    FRAME.pack(2**31 - 1) + b"a long message follows",
    FRAME.pack(-1) + struct.pack("!Q", 2**63) + b"and a longer one",
    FRAME.pack(32) + bytes(32),
    b"\x00",
)


def test_a_hundred_silent_and_a_hundred_talking_strangers_keep_no_one_away(listening):
    with ExitStack() as strangers:
        silent = [strangers.enter_context(listening.stranger()) for _ in range(100)]
        talking = [strangers.enter_context(listening.stranger()) for _ in range(100)]
        for number, stranger in enumerate(talking):
            try:
                stranger.sendall(WORDS[number % len(WORDS)])
            except OSError:
                continue  # ended already, for one that came later
        began = time.monotonic()
        assert listening.answers()
        assert time.monotonic() - began < 5
        assert ended(silent[0])  # for those that came later
        waiting = [t for t in threading.enumerate() if "_prove" in t.name]
        assert len(waiting) <= MAX_UNAUTHENTICATED + 1
    assert listening.answers()
    assert len(listening.accepted) == 2


@pytest.mark.parametrize("first", [b"", b"\x00", FRAME.pack(100) + b"half"])
def test_a_connection_without_a_proof_ends_in_time(first):
    with closing(Listening(timeout=0.2)) as listening, listening.stranger() as stranger:
        stranger.sendall(first)
        assert ended(stranger)
        assert listening.accepted == []
        assert listening.answers()


def test_one_byte_at_a_time_is_no_way_to_stay():
    with closing(Listening(timeout=0.5)) as listening, listening.stranger() as stranger:
        began = time.monotonic()
        with suppress(OSError):
            stranger.sendall(FRAME.pack(200))
            while time.monotonic() - began < 60:
                stranger.sendall(b"a")
                time.sleep(0.02)
        assert time.monotonic() - began < 30


IPV6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


@IPV6
@pytest.mark.parametrize(
    ("listens_at", "reached_at"),
    [("", "::1"), ("", "127.0.0.1"), ("", "localhost"), ("::1", "::1"), ("[::1]", "[::1]")],
)
def test_a_listener_has_ipv6_and_ipv4(listens_at, reached_at):
    accepted = []
    listener = AuthenticatedListener((listens_at, 0), key=KEY, on_connection=accepted.append)
    with closing(listener), connect((reached_at, listener.port), key=KEY):
        end = time.monotonic() + 30
        while not accepted:
            assert time.monotonic() < end
            time.sleep(0.01)
    accepted[0].close()


@pytest.mark.parametrize(
    ("host", "address"),
    [("a", "a:7"), ("10.0.0.1", "10.0.0.1:7"), ("fd00::1", "[fd00::1]:7"), ("[::1]", "[::1]:7")],
)
def test_an_ipv6_address_before_a_port_has_brackets(host, address):
    assert join_address(host, 7) == address


def test_another_token_is_refused(listening):
    with pytest.raises(AuthenticationError):
        connect(listening.address, key=b"another")
    assert listening.accepted == []


@pytest.mark.parametrize("says", [b"", FRAME.pack(3) + b"abc", FRAME.pack(40) + bytes(40)])
def test_what_listens_must_prove_that_it_knows_the_token_too(says):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        taken = []

        def accept():
            taken.append(server.accept()[0])
            taken[0].sendall(says)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(AuthenticationError, match="has not proved"):
            connect(address, key=KEY, timeout=0.3)
        thread.join(60)
        taken[0].close()


@settings(max_examples=60, deadline=None)
@given(frames=st.lists(st.binary(max_size=300), max_size=4), is_framed=st.booleans())
def test_no_bytes_end_the_listener(frames, is_framed):
    with closing(Listening(timeout=2.0)) as listening:
        with listening.stranger() as stranger:
            for frame in frames:
                try:
                    stranger.sendall((FRAME.pack(len(frame)) if is_framed else b"") + frame)
                except OSError:
                    break
        assert listening.answers()
        assert len(listening.accepted) == 1


def test_a_closed_listener_accepts_no_one(listening):
    address = listening.address
    listening.listener.close()
    with pytest.raises((OSError, AuthenticationError)):
        connect(address, key=KEY, timeout=1.0)


def test_a_connection_is_one_of_the_library(listening):
    with connect(listening.address, key=KEY) as connection:
        assert isinstance(connection, Connection)
