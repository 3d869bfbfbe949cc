"""Is this launcher one of several, and which? Each kind of cluster is asked, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from phalanx.cluster.environments import (
    host_list,
    kubernetes,
    mpi,
    ray,
    slurm,
    tf_config,
    torchrun,
    tpu_vm,
)
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.cluster.spec import WORKER_VARIABLE
from phalanx.errors import ClusterError, ConfigurationError

Detector = Callable[[Mapping[str, str], LocalHost | None], ClusterEnvironment | None]

DETECTORS: tuple[tuple[str, Detector], ...] = (
    ("hosts", host_list.detect),
    ("tf_config", tf_config.detect),
    ("torchrun", torchrun.detect),
    ("mpi", mpi.detect),
    ("ray", ray.detect),
    ("slurm", slurm.detect),
    ("kubernetes", kubernetes.detect),
    ("tpu", tpu_vm.detect),
)
"""The first that finds something counts. docs/hosts.md has this table for people."""

INNERMOST = ("hosts", "torchrun", "mpi", "ray")
"""What a person says, and what is started inside another cluster: no others are asked then."""

CLUSTER_NAMES = ("auto", "none", *(name for name, _ in DETECTORS))


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The result of one cluster environment's detection.

    Attributes:
        kind: its name.
        node_group: the nodes that it found; None if it found no such cluster.
        error: why the nodes that it found cannot be used.
    """

    kind: str
    node_group: ClusterEnvironment | None = None
    error: ClusterError | None = None


def detect(
    environment: Mapping[str, str], *, me: LocalHost | None = None, kind: str = "auto"
) -> ClusterEnvironment | None:
    """Where the launchers of this run are; None where this one is alone.

    Args:
        environment: the variables of this process.
        me: this machine; None asks for no comparison with its own addresses.
        kind: one of `CLUSTER_NAMES`: "auto" asks all in order, "none" takes no cluster.

    Raises:
        ConfigurationError: there is no such kind.
        ClusterError: what was found contradicts itself, or two clusters contradict each other.
    """
    if kind not in CLUSTER_NAMES:
        raise ConfigurationError(
            f"--cluster must be one of {', '.join(CLUSTER_NAMES)}; found {kind!r}."
        )
    if kind == "none":
        return None
    if kind != "auto":
        return _detect_only(environment, me, kind)
    if WORKER_VARIABLE in environment:
        return None  # a run inside a worker is one of its own
    detections = probe_all(environment, me=me)
    chosen = next((one for one in detections if one.node_group or one.error), None)
    if chosen is None:
        return None
    if chosen.error is not None:
        raise chosen.error
    if chosen.kind not in INNERMOST:
        _check_conflict(chosen, detections)
    return _with_job(chosen.node_group, environment)


def probe_all(environment: Mapping[str, str], *, me: LocalHost | None = None) -> list[Detection]:
    """What every kind makes of an environment, in order: for the choice, and to explain it."""
    return [_probe(kind, detector, environment, me) for kind, detector in DETECTORS]


def _probe(
    kind: str, detector: Detector, environment: Mapping[str, str], me: LocalHost | None
) -> Detection:
    try:
        return Detection(kind=kind, node_group=detector(environment, me))
    except ClusterError as error:
        return Detection(kind=kind, error=error)


def _detect_only(
    environment: Mapping[str, str], me: LocalHost | None, kind: str
) -> ClusterEnvironment:
    found = dict(DETECTORS)[kind](environment, me)
    found = _with_job(found, environment)
    if found is None:
        raise ClusterError(
            f"--cluster {kind} was asked for, but the environment says nothing of such a cluster. "
            "Leave it out, or start phalanx run where that cluster starts its processes."
        )
    return found


def _with_job(
    node_group: ClusterEnvironment | None, environment: Mapping[str, str]
) -> ClusterEnvironment | None:
    """PHALANX_RUN_ID names the run where the cluster does not."""
    if node_group is None or node_group.job is not None:
        return node_group
    return replace(node_group, job=environment.get(host_list.JOB) or None)


def _check_conflict(chosen: Detection, detections: list[Detection]) -> None:
    """A second cluster must say the same, or be of one launcher, which says nothing."""
    assert chosen.node_group is not None
    for other in detections:
        if other.kind == chosen.kind:
            continue
        if other.error is not None:
            raise other.error
        if other.node_group is None or len(other.node_group.hosts) == 1:
            continue
        if _identity(other.node_group) != _identity(chosen.node_group):
            raise ClusterError(
                f"Two clusters at once: {chosen.kind} ({chosen.node_group.why}) and {other.kind} "
                f"({other.node_group.why}). Say which counts by --cluster {chosen.kind} or "
                f"--cluster {other.kind}, or unset the variables of the other."
            )


def _identity(node_group: ClusterEnvironment) -> tuple[int, int]:
    return node_group.index, len(node_group.hosts)
