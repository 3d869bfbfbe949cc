"""The leader: waits for the launchers of the other nodes, and starts workers there."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import LaunchError, PhalanxError, UnavailableError
from phalanx.launcher.context import LaunchContext
from phalanx.launcher.failure import boot_id
from phalanx.launcher.options import STARTUP_TIMEOUT, RunOptions
from phalanx.launcher.prefork import PreforkPool
from phalanx.launcher.rendezvous.client import LONGEST_GAP, WaitReporter
from phalanx.launcher.rendezvous.identity import CommandIdentity
from phalanx.launcher.rendezvous.node import LocalNode, Node, pick_public_ports
from phalanx.launcher.rendezvous.remote_node import RemoteNode
from phalanx.launcher.rendezvous.server import RendezvousServer
from phalanx.launcher.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launcher.resources import Machine
from phalanx.launcher.run_dir import versions
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import Clock, MonotonicClock
from phalanx.launcher.worker_group import WorkerGroupSpec

_SKEW = 2.0
"""Seconds between two clocks that a person notices in logs; a message takes less."""


class Leader:
    """Leads the launchers of the other nodes; a context manager."""

    def __init__(
        self,
        node_group: ClusterEnvironment,
        root: Path,
        *,
        versions: Mapping[str, str],
        clock: Clock,
        announce: Callable[[str], None],
        rendezvous_timeout: float = STARTUP_TIMEOUT,
        identity: CommandIdentity | None = None,
        name: str | None = None,
    ) -> None:
        """Listen, and write the rendezvous file.

        Args:
            node_group: where the launchers are.
            root: the directory of all runs, which the hosts share.
            versions: of the packages on this host.
            clock: the time.
            announce: says something to the user.
            rendezvous_timeout: seconds to wait for the others, at the start and after one was lost.
            identity: of the command, which all launchers must share.
            name: the run's, if the command names it.

        Raises:
            LaunchError: it cannot listen, or cannot write the rendezvous file.
        """
        self.is_interrupted: Callable[[], bool] = lambda: False
        """Whether a signal asks to end the run: a wait for a lost host then ends."""
        self.node_group = node_group
        self.address = node_group.hosts[0] or socket.gethostname()
        self._clock = clock
        self._announce = announce
        self._timeout = rendezvous_timeout
        self._has_ended = False
        self._reported_rejections: dict[int, str] = {}
        token = secrets.token_hex(16)
        self._path = rendezvous_path(root.absolute(), node_group, name)
        try:
            self.server = RendezvousServer(
                node_group, key=bytes.fromhex(token), versions=versions, identity=identity
            )
            self.info = RendezvousInfo(host=self.address, port=self.server.port, token=token)
            self.info.write(self._path)
        except OSError as error:
            raise LaunchError(
                f"Asked to lead {len(node_group.hosts)} hosts, but this launcher cannot listen for "
                f"the others, or write where it does to {self._path}: {error}. Is --run-dir a "
                "directory that all hosts share and may write to?"
            ) from error
        self.nodes = [
            RemoteNode(index, server=self.server, wait_for=self.wait_for)
            for index in range(1, len(node_group.hosts))
        ]

    def __enter__(self) -> Leader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._has_ended:
            code = error.exit_code if isinstance(error, PhalanxError) else 1
            self.end(code, str(error) if error is not None else None)
        with suppress(OSError):
            self.info.remove(self._path)
        self.server.close()

    def gather(self) -> list[Machine]:
        """Wait for all other nodes; gives the resources of each, in order.

        Raises:
            UnavailableError: some did not connect in time; names them.
        """
        self.wait_for(range(1, len(self.node_group.hosts)))
        for index in range(1, len(self.node_group.hosts)):
            if abs(skew := self.server.skew(index)) > _SKEW:
                self._announce(
                    f"the clock of {self.server.address(index)} ({index}) is {abs(skew):.0f} s "
                    f"{'ahead of' if skew > 0 else 'behind'} this host's: times in logs and "
                    "records of the two do not agree; the run does not depend on it"
                )
        return [self.server.machine(index) for index in range(1, len(self.node_group.hosts))]

    @property
    def host_ids(self) -> list[str]:
        """The host of each launcher: equal for launchers of one host."""
        others = range(1, len(self.node_group.hosts))
        return [f"{socket.gethostname()} {boot_id()}", *map(self.server.host_id, others)]

    def wait_for(self, wanted: Sequence[int]) -> None:
        """Wait until the launchers of these nodes are connected, and report the wait.

        Raises:
            UnavailableError: some did not connect in time, or a signal came.
        """
        waiting = WaitReporter(self._clock, self._announce, self._timeout)
        while missing := sorted(set(wanted) & set(self.server.missing())):
            if waiting.is_over:
                it = "them" if len(missing) > 1 else "it"
                raise UnavailableError(
                    f"Waited {self._timeout:.0f} s for {self._named(missing)}; found no sign of "
                    f"{it}: {self._hint(missing)}. --rendezvous-timeout waits longer."
                )
            if self.is_interrupted():
                raise UnavailableError(
                    f"A signal ended the wait for {self._named(missing)} after "
                    f"{waiting.seconds:.0f} s."
                )
            self._report_rejections()
            waiting.report(self._named(missing))
            self.server.wait(0.2)

    def signals(self) -> list[tuple[int, int]]:
        """Signals that reached other launchers since the last call: node rank, signal number."""
        for node in self.nodes:
            node.poll()
        found = [(node.index, number) for node in self.nodes for number in node.signals]
        for node in self.nodes:
            node.signals.clear()
        return found

    def end(self, code: int, report: str | None) -> None:
        """Send the result of the run to all followers."""
        self._has_ended = True
        # A launcher of the next run may come as soon as its host knows that this one is over.
        self.server.reject_all()
        for node in self.nodes:
            if (channel := self.server.channel(node.index)) is not None:
                channel.send({"do": "end", "code": code, "report": report})

    def _report_rejections(self) -> None:
        """Announce rejected launchers at once: the wait for another launcher may be long."""
        rejected = self.server.rejected()
        for index, why in rejected.items():
            if self._reported_rejections.get(index) != why:
                who = f"the launcher with index {index}" if index >= 0 else "a launcher"
                self._announce(f"rejected {who}: {why}")
        self._reported_rejections = rejected

    def _named(self, indices: Sequence[int]) -> str:
        hosts = ", ".join(
            f"{self.node_group.hosts[i] or 'a host without a name'} ({i})" for i in indices
        )
        return f"the launcher{'s' * (len(indices) != 1)} on {hosts}"

    def _hint(self, missing: Sequence[int]) -> str:
        rejected = self.server.rejected()
        why = [f"host {index}: {rejected[index]}" for index in missing if index in rejected]
        return "; ".join(why) or (
            "start the same command on each of them, with the same --name and --run-dir, a "
            f"directory that all share; they must reach {self.address} port {self.server.port}"
        )


def run_leader(
    options: RunOptions, context: LaunchContext, node_group: ClusterEnvironment
) -> Leader:
    """Start to lead the launchers of the other nodes.

    Raises:
        LaunchError: this launcher cannot listen for them.
    """
    return Leader(
        node_group,
        options.run_dir,
        versions=versions(),
        clock=MonotonicClock(longest_gap=LONGEST_GAP),
        announce=context.announce,
        rendezvous_timeout=options.rendezvous_timeout,
        identity=CommandIdentity.of(options),
        name=options.name,
    )


def nodes_of(plan: WorkerGroupSpec, context: LaunchContext, leader: Leader | None) -> list[Node]:
    """The nodes on which workers are started: the leader's own and those of all followers."""
    here = partial(
        LocalNode,
        command=plan.command,
        environment=plan.environment,
        warm=PreforkPool(context.announce),
    )
    if leader is None:
        return [here(picks=context.pick_ports)]
    return [here(address=leader.address, picks=pick_public_ports), *leader.nodes]


def forward_signals(leader: Leader | None, signals: SignalCatcher) -> bool:
    """Treat signals that reached followers as signals to this launcher; whether any came."""
    for launcher, number in leader.signals() if leader is not None else ():
        signals.add(number, launcher)
    return bool(signals.count())
