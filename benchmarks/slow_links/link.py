"""A link between two network namespaces, whose rate a token bucket limits in both directions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.79.0.1", "10.79.0.2")


@contextmanager
def link(rate: str) -> Iterator[tuple[str, str]]:
    """The names of two namespaces, which end with the block.

    Args:
        rate: as `tc` takes it, such as "1gbit".

    Raises:
        RuntimeError: this process may not make namespaces, or `ip` or `tc` is missing.
    """
    names = (f"phx{os.getpid()}a", f"phx{os.getpid()}b")
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        first, second = names
        peer = ("peer", "name", "eth0", "netns", second)
        _run("ip", "-n", first, "link", "add", "eth0", "type", "veth", *peer)
        for name, address in zip(names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            limit = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", *limit)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", "") or error
        raise RuntimeError(
            f"{' '.join(command)} failed ({output}). Network namespaces need root, and the "
            "commands ip and tc of the package iproute2."
        ) from error
