"""Free ports for the workers' servers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

PortPicker = Callable[[int], list[int]]
"""Gives that many distinct ports. Tests hand in one that gives taken ports."""


def pick_free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` distinct ports on which no process listens right now, at an address of this host's.

    "" stands for all its addresses.

    Nothing holds them until TensorFlow's servers start: another process may be quicker,
    and then the worker group is restarted with other ports.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind((host, 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
