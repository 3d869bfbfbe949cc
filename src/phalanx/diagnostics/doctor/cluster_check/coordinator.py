"""The two parts that a doctor can have among several: to lead, or to follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.diagnostics.doctor.all_reduce import AddingWorker
from phalanx.diagnostics.doctor.all_reduce_cost import PARAMETERS
from phalanx.diagnostics.doctor.cluster_check.bandwidth import Probe
from phalanx.diagnostics.doctor.cluster_check.check_follower import CheckFollower
from phalanx.diagnostics.doctor.cluster_check.cluster_checks import Examination
from phalanx.diagnostics.doctor.cluster_check.network_links import Link
from phalanx.diagnostics.doctor.cluster_check.node_client import OwnHost
from phalanx.diagnostics.doctor.cluster_check.node_gathering import Gathered, gather, missing
from phalanx.diagnostics.doctor.cluster_check.node_service import Answers, StartAdding
from phalanx.diagnostics.doctor.cluster_check.unreachable_marker import Sign
from phalanx.diagnostics.doctor.result import Result
from phalanx.diagnostics.doctor.run_checks import is_passing
from phalanx.launch.rendezvous.leader import Leader
from phalanx.launch.rendezvous.store import rendezvous_path
from phalanx.launch.run_dir import versions
from phalanx.launch.supervisor import Clock, MonotonicClock

STARTUP_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class NodeClients:
    """One examination of several hosts, as the doctor of one of them knows it.

    Attributes:
        node_group: where the doctors are.
        root: the directory of all runs, which the hosts share.
        look: looks at this host.
        announce: says something to the user.
        parameters: of the model whose steps are spoken of.
        rendezvous_timeout: seconds to wait for the others.
        clock: the time.
        start: starts one of two processes that add up.
    """

    node_group: ClusterEnvironment
    root: Path
    look: Callable[[], Sequence[Result]]
    announce: Callable[[str], None]
    parameters: int = PARAMETERS
    rendezvous_timeout: float = STARTUP_TIMEOUT
    clock: Clock = field(default_factory=MonotonicClock)
    start: StartAdding = AddingWorker

    def follow(self) -> int:
        """Look at this host, and answer the leader; gives its exit code.

        Raises:
            LaunchError: there is no leader, it is not reached, or it is gone.
        """
        return CheckFollower(
            _apart(self.node_group),
            self.root,
            results=self.look(),
            versions=versions(),
            clock=self.clock,
            announce=self.announce,
            rendezvous_timeout=self.rendezvous_timeout,
            start=self.start,
        ).run()

    def lead(self, show: Callable[[Result], None]) -> list[Link]:
        """Look at this host, then ask the others; gives the links that were measured.

        Args:
            show: told of each finding as it comes.

        Raises:
            LaunchError: this host cannot listen, or not write where.
        """
        fit = True
        with Leader(
            _apart(self.node_group),
            self.root,
            versions={},  # That they differ is a finding, and no reason to send anybody away.
            clock=self.clock,
            announce=self.announce,
        ) as leader:
            began, own = time.monotonic(), self.look()
            gathered = gather(
                leader,
                self._directory,
                clock=self.clock,
                announce=self.announce,
                rendezvous_timeout=self.rendezvous_timeout,
            )
            with self._probe(leader, gathered) as probe:
                examination = self._examination(leader, gathered, own, probe)
                for result in chain(missing(gathered, leader, began), examination.results()):
                    fit = fit and is_passing([result])
                    show(result)
            leader.end(0 if fit else 1, None)
        return examination.links

    @property
    def _directory(self) -> Path:
        return rendezvous_path(self.root.absolute(), _apart(self.node_group)).parent

    @contextmanager
    def _probe(self, leader: Leader, gathered: Gathered) -> Iterator[Probe]:
        """This host's, while it is needed; takes the signs away that others have left."""
        probe = Probe(leader.info.key)
        try:
            yield probe
        finally:
            probe.close()
            for at in gathered.signs:
                Sign.remove(self._directory, leader.info, at)

    def _examination(
        self, leader: Leader, gathered: Gathered, own: Sequence[Result], probe: Probe
    ) -> Examination:
        answers = Answers(
            0,
            results=own,
            versions=versions(),
            probe=probe,
            token=leader.info.token,
            root=self.root.absolute(),
            start=self.start,
        )
        return Examination(
            OwnHost(answers),
            gathered,
            root=self.root.absolute(),
            parameters=self.parameters,
            port=probe.port,
        )


def _apart(node_group: ClusterEnvironment) -> ClusterEnvironment:
    """Places of their own: a run on the same hosts may use the same directory now."""
    return replace(node_group, job=f"doctor of {node_group.job}")
