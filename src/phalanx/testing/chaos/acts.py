"""How the faults of a worker are done, to this process by itself."""

from __future__ import annotations

import builtins
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

from phalanx.testing.chaos.faults import (
    DropNetwork,
    Exit,
    Kill,
    Raise,
    Stop,
    WorkerFault,
)

_BETWEEN_CUTS = 0.02


def act(fault: WorkerFault, peers: Collection[int]) -> None:
    """Do it, now; of `Slow` nothing, which is more than one moment.

    Args:
        fault: what to do.
        peers: the ports of all workers; empty where they are not known.
    """
    match fault:
        case Kill():
            os.kill(os.getpid(), signal.SIGKILL)
        case Exit():
            os._exit(fault.code)
        case Stop():
            stop(fault.seconds)
        case Raise():
            raise getattr(builtins, fault.error)(fault.message)
        case DropNetwork():
            drop_network(fault.seconds, peers)


def stop(seconds: float | None) -> None:
    """Stand still by SIGSTOP, heartbeat and all; somebody else must end that."""
    waker = None
    if seconds is not None:
        # In this process's group, so that whoever ends the worker ends it too.
        program = f"import os, time; time.sleep({seconds!r}); os.kill({os.getpid()}, 18)"
        waker = subprocess.Popen([sys.executable, "-S", "-E", "-c", program])
    os.kill(os.getpid(), signal.SIGSTOP)
    if waker is not None:
        waker.wait()


def drop_network(seconds: float | None, ports: Collection[int]) -> None:
    """Shut connections now, and from a thread those that are made within `seconds`."""
    shut_connections(ports)
    end = math.inf if seconds is None else time.monotonic() + seconds

    def go_on() -> None:
        while time.monotonic() < end:
            shut_connections(ports)
            time.sleep(_BETWEEN_CUTS)

    threading.Thread(target=go_on, name="phalanx-chaos-network", daemon=True).start()


def shut_connections(ports: Collection[int]) -> int:
    """Shut this process's TCP connections; needs no special rights.

    Args:
        ports: those that a connection must have at one of its ends; empty for any.

    Returns:
        How many there were.
    """
    shut = 0
    for each in psutil.Process().net_connections(kind="tcp"):
        if each.status != psutil.CONN_ESTABLISHED or each.fd < 0:
            continue
        if ports and not {each.laddr.port, each.raddr.port} & set(ports):
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
            shut += 1
    return shut


def pause(seconds: float) -> None:
    """What `Slow` does at each of its steps."""
    time.sleep(seconds)
