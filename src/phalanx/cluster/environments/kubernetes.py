"""Kubernetes: one launcher for each pod of an Indexed Job.

Kubernetes gives a pod its index; how many pods there are and how they are called must be in the
Job's own text, as `phalanx submit kubernetes` writes it.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cluster.environments.rank_variables import rank_of
from phalanx.cluster.local_host import LocalHost
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.errors import ClusterError

INDEX = "JOB_COMPLETION_INDEX"
PODS, POD_HOST, JOB = "PHALANX_NUM_PODS", "PHALANX_POD_HOSTNAME_TEMPLATE", "PHALANX_RUN_ID"
POD_OF_INDEX = "{index}"


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers in the pods of this Job.

    Raises:
        ClusterError: the Job does not say how many pods it has or how they are called, or the
            index is not one of them.
    """
    if INDEX not in environment:
        return None
    if not environment.get(PODS, "").strip():
        raise ClusterError(
            f"JOB_COMPLETION_INDEX is {environment[INDEX]}, so this is a pod of an Indexed Job, "
            "but PHALANX_NUM_PODS is not set. Set it to the Job's completions and "
            "PHALANX_POD_HOSTNAME_TEMPLATE to the pods' names, such as train-{index}.train; or "
            "give --cluster none where each pod trains on its own."
        )
    index, pods = rank_of(environment, INDEX, PODS)
    pattern = environment.get(POD_HOST, "").strip()
    if pods > 1 and POD_OF_INDEX not in pattern:
        raise ClusterError(
            f"PHALANX_POD_HOSTNAME_TEMPLATE must be the pods' name with {{index}} in it, such as "
            f"train-{{index}}.train, where a headless Service gives them names; found {pattern!r}."
        )
    return ClusterEnvironment(
        hosts=tuple(pattern.replace(POD_OF_INDEX, str(pod)) for pod in range(pods)),
        index=index,
        kind="kubernetes",
        why=f"JOB_COMPLETION_INDEX is {index} of {pods} pods",
        job=environment.get(JOB) or None,
    )
