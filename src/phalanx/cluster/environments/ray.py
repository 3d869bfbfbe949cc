"""Ray: one launcher for each bundle of a job, as `phalanx submit ray` places them.

Ray gives a process no information about its peers. The entrypoint of a Ray job is one process on
one node. https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.environments.rank_variables import number
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment

HOSTS, INDEX, JOB = "PHALANX_RAY_HOSTS", "PHALANX_RAY_NODE_RANK", "PHALANX_RUN_ID"
ENTRYPOINT = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What Ray hands to the entrypoint of a job that was submitted."""


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers of this Ray job; in its entrypoint, this one alone.

    Raises:
        ClusterError: the index is missing, or is not one of the hosts.
    """
    hosts = tuple(filter(None, environment.get(HOSTS, "").split(",")))
    if hosts:
        index = number(environment, INDEX)
        why = f"{INDEX} is {index} of {len(hosts)} bundles"
        job = environment.get(JOB) or None
        return ClusterEnvironment(hosts=hosts, index=index, kind="ray", why=why, job=job)
    if ENTRYPOINT not in environment:
        return None
    return ClusterEnvironment(
        hosts=("",),
        index=0,
        kind="ray",
        why=(
            "this is the entrypoint of a Ray job, on one of its nodes; use `phalanx submit ray` "
            "to train on several"
        ),
    )
