"""The two roles of a doctor of several nodes: leader and follower."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.diagnostics.doctor.all_reduce import PARAMETERS, AllReduceWorker
from phalanx.diagnostics.doctor.cluster_check.cluster_checks import ClusterChecks
from phalanx.diagnostics.doctor.cluster_check.follower import (
    CheckFollower,
    NodeService,
    StartAllReduceWorker,
    UnreachableMarker,
)
from phalanx.diagnostics.doctor.cluster_check.network_links import Link, LinkProbe
from phalanx.diagnostics.doctor.cluster_check.nodes import (
    ConnectedNodes,
    LocalNodeClient,
    connect_nodes,
    missing,
)
from phalanx.diagnostics.doctor.result import Result, is_passing
from phalanx.launcher.rendezvous.leader import Leader
from phalanx.launcher.rendezvous.store import rendezvous_path
from phalanx.launcher.run_dir import versions
from phalanx.launcher.supervisor import Clock, MonotonicClock
from phalanx.monitoring.communication_advice import Advice, StepCosts

STARTUP_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class ClusterFindings:
    """What was measured, next to the results.

    Attributes:
        links: each pair of nodes, in both directions.
        advice: options of `phalanx run` that would shorten a step.
    """

    links: Sequence[Link]
    advice: Sequence[Advice]


@dataclass(frozen=True, kw_only=True)
class ClusterCheck:
    """One `phalanx doctor --cluster`, on one node.

    Attributes:
        node_group: the nodes to check.
        root: the directory of all runs, which the hosts share.
        check: runs the checks of this node.
        announce: prints a message for the user.
        parameters: of the model for which the cost of an all-reduce is estimated.
        step: what its step costs elsewhere; None if that is not known.
        rendezvous_timeout: seconds to wait for the others.
        clock: the time.
        start: starts one of the two all-reduce workers.
    """

    node_group: ClusterEnvironment
    root: Path
    check: Callable[[], Sequence[Result]]
    announce: Callable[[str], None]
    parameters: int = PARAMETERS
    step: StepCosts | None = None
    rendezvous_timeout: float = STARTUP_TIMEOUT
    clock: Clock = field(default_factory=MonotonicClock)
    start: StartAllReduceWorker = AllReduceWorker

    def follow(self) -> int:
        """Check this node, and answer the leader; gives the leader's exit code.

        Raises:
            LaunchError: there is no leader, it is not reached, or it is lost.
        """
        return CheckFollower(
            _with_own_job(self.node_group),
            self.root,
            results=self.check(),
            versions=versions(),
            clock=self.clock,
            announce=self.announce,
            rendezvous_timeout=self.rendezvous_timeout,
            start=self.start,
        ).run()

    def lead(self, show: Callable[[Result], None]) -> ClusterFindings:
        """Check this node, then all nodes together.

        Args:
            show: called with each result.

        Raises:
            LaunchError: this node cannot listen, or cannot write the rendezvous file.
        """
        fit = True
        with Leader(
            _with_own_job(self.node_group),
            self.root,
            versions={},  # Versions that differ are a finding, and no reason to reject a node.
            clock=self.clock,
            announce=self.announce,
        ) as leader:
            began, own = time.monotonic(), self.check()
            connected = connect_nodes(
                leader,
                self._directory,
                clock=self.clock,
                announce=self.announce,
                rendezvous_timeout=self.rendezvous_timeout,
            )
            with self._probe(leader, connected) as probe:
                checks = self._checks(leader, connected, own, probe)
                for result in chain(missing(connected, leader, began), checks.results()):
                    fit = fit and is_passing([result])
                    show(result)
            leader.end(0 if fit else 1, None)
        return ClusterFindings(links=checks.links, advice=checks.advice)

    @property
    def _directory(self) -> Path:
        return rendezvous_path(self.root.absolute(), _with_own_job(self.node_group)).parent

    @contextmanager
    def _probe(self, leader: Leader, connected: ConnectedNodes) -> Iterator[LinkProbe]:
        """The probe of this node while it is needed; then removes the markers of other nodes."""
        probe = LinkProbe(leader.info.key)
        try:
            yield probe
        finally:
            probe.close()
            for at in connected.markers:
                UnreachableMarker.remove(self._directory, leader.info, at)

    def _checks(
        self, leader: Leader, connected: ConnectedNodes, own: Sequence[Result], probe: LinkProbe
    ) -> ClusterChecks:
        service = NodeService(
            0,
            results=own,
            versions=versions(),
            probe=probe,
            token=leader.info.token,
            root=self.root.absolute(),
            start=self.start,
        )
        return ClusterChecks(
            LocalNodeClient(service),
            connected,
            root=self.root.absolute(),
            parameters=self.parameters,
            step=self.step,
            port=probe.port,
        )


def _with_own_job(node_group: ClusterEnvironment) -> ClusterEnvironment:
    """Another job name: a run on the same hosts may use the same rendezvous directory."""
    return replace(node_group, job=f"doctor of {node_group.job}")
