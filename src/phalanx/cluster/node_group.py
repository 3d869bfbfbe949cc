"""The nodes of one run: each `phalanx run` of a run on several hosts has a node rank."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import ClusterError


@dataclass(frozen=True, kw_only=True)
class ClusterEnvironment:
    """All launchers of a run, and which of them this process is.

    Each starts workers of its own on its host. Two may share a host, as two tasks of a Slurm
    job on one node do. The launcher of node rank 0 leads the others.

    Attributes:
        hosts: the host of each launcher, by index: names or addresses that the others can reach;
            "" where the cluster does not say, as under MPI, and that launcher must report itself.
        index: the node rank of this launcher.
        kind: the source of this, such as "slurm" or "hosts".
        why: the evidence as text: "SLURM_PROCID is 3 of 4".
        job: names the run where the cluster has a name for it; the same on all hosts.
    """

    hosts: tuple[str, ...]
    index: int
    kind: str
    why: str
    job: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.hosts):
            raise ClusterError(
                f"A launcher's index must be 0 to {len(self.hosts) - 1} among "
                f"{len(self.hosts)} hosts; found {self.index} ({self.why})."
            )

    @property
    def is_leader(self) -> bool:
        """Whether this launcher leads the others."""
        return self.index == 0
