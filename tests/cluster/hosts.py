"""Hosts on one machine: network namespaces, joined by a bridge in a namespace of its own.

No address of theirs can be reached from outside, and nothing of the machine's own network is
touched. A cable that is cut lets packets vanish without an error, as in a real network.
"""

import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

NETWORK = "10.77.0"
SLOW = "slow0"
OWN_FILES = Path("/etc/netns")  # `ip netns exec` puts what is here over /etc


class Hosts:
    """So many hosts, with the addresses 10.77.0.10, 10.77.0.11 ...

    With `named` they are called node0, node1 ..., and know each other by these names.
    """

    def __init__(self, count, prefix=None, *, named=False):
        self.count = count
        self._named = named
        self._prefix = prefix or f"phx{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._made = []

    def address(self, host):
        return f"{NETWORK}.{10 + host}"

    def command(self, host, words):
        """The words that run a command on a host."""
        there = ["ip", "netns", "exec", self._name(host)]
        if not self._named:
            return [*there, *words]
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"node{host}"]
        return [*there, *named, *words]

    def cut(self, host):
        """Pull the host's cable."""
        self._in_switch("link", "set", f"port{host}", "down")

    def heal(self, host):
        """Put the host's cable back."""
        self._in_switch("link", "set", f"port{host}", "up")

    def slow(self, one, other, *limit):
        """Give two hosts a cable of their own, which `tc` makes slow; others keep theirs."""
        names = [self._name(one), self._name(other)]
        ip(
            "-n",
            names[0],
            "link",
            "add",
            SLOW,
            "type",
            "veth",
            "peer",
            "name",
            SLOW,
            "netns",
            names[1],
        )
        for name, here, there in zip(names, (one, other), (other, one), strict=True):
            ip("-n", name, "link", "set", SLOW, "up")
            address = (f"{self.address(there)}/32", "dev", SLOW, "src", self.address(here))
            ip("-n", name, "route", "add", *address)
            call("tc", "-n", name, "qdisc", "add", "dev", SLOW, "root", "tbf", *limit)

    def part(self, one, other):
        """What two hosts send to each other vanishes; others reach both."""
        for here, there in ((one, other), (other, one)):
            no_one = ("lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", "eth0")
            ip("-n", self._name(here), "neigh", "replace", self.address(there), *no_one)

    def reconnect(self, one, other):
        """Undo `slow` and `part`."""
        for here, there in ((one, other), (other, one)):
            with suppress(OSError):
                ip("-n", self._name(here), "link", "del", SLOW)
            with suppress(OSError):
                ip("-n", self._name(here), "neigh", "del", self.address(there), "dev", "eth0")

    def up(self):
        self._add(self._switch)
        self._in_switch("link", "add", "bridge0", "type", "bridge")
        self._in_switch("link", "set", "bridge0", "up")
        for host in range(self.count):
            self._plug_in(host)

    def down(self):
        for name in self._made:
            ip("netns", "del", name)
            shutil.rmtree(OWN_FILES / name, ignore_errors=True)

    def _plug_in(self, host):
        name, port = self._name(host), f"port{host}"
        self._add(name)
        self._in_switch("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._in_switch("link", "set", port, "master", "bridge0", "up")
        ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        if self._named:
            known = [f"{self.address(other)} node{other}\n" for other in range(self.count)]
            (OWN_FILES / name).mkdir(parents=True)
            (OWN_FILES / name / "hosts").write_text("127.0.0.1 localhost\n" + "".join(known))

    def _name(self, host):
        return f"{self._prefix}-{host}"

    def _add(self, name):
        ip("netns", "add", name)
        self._made.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def _in_switch(self, *words):
        ip("-n", self._switch, *words)


def ip(*words):
    call("ip", *words)


def call(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def hosts_up(count, *, named=False):
    """Hosts, for the length of a block."""
    hosts = Hosts(count, named=named)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


def why_not():
    """Why no hosts can be made here; None if they can."""
    if shutil.which("ip") is None:
        return "needs iproute2: scripts/install_network_tools.sh"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    try:
        with hosts_up(1):
            return None
    except OSError as error:
        return f"network namespaces cannot be made here ({error})"
