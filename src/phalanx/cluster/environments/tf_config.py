"""TF_CONFIG: one launcher for each task that somebody else has named.

Kubeflow's TFJob and Vertex AI set it. Its ports are TensorFlow's and are not used: Phalanx picks
free ones when it starts workers. https://www.tensorflow.org/guide/distributed_training
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from phalanx.cluster.local_host import LocalHost, is_address
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.cluster.tf_config_parser import TFConfig
from phalanx.errors import ClusterError

ORDER = ("chief", "master", "worker", "ps")
"""Who leads, who follows: Vertex AI and older Kubeflow also call the chief a master."""
ANY = ("0.0.0.0", "::")


def detect(
    environment: Mapping[str, str], me: LocalHost | None = None
) -> ClusterEnvironment | None:
    """The launchers on the hosts of the chief, the workers and the parameter servers.

    Raises:
        ClusterError: it contradicts itself, or is of a kind that cannot be trained on.
    """
    _refuse_what_is_no_member(environment.get("TF_CONFIG", ""))
    config = TFConfig.from_environment(environment)
    if config is None:
        return None
    if "chief" in config.cluster and "master" in config.cluster:
        raise ClusterError(
            "TF_CONFIG has a chief and a master, which are two names of one task. Leave one out."
        )
    jobs = [job for job in ORDER if job in config.cluster]
    before = jobs[: jobs.index(config.task_type)] if config.task_type in jobs else None
    if before is None:
        raise ClusterError(
            f"TF_CONFIG's task must be one of {', '.join(ORDER)}; found {config.task_type!r}. Fix "
            "the task."
        )
    index = sum(len(config.cluster[job]) for job in before) + config.task_index
    hosts = tuple(_host_of(address) for job in jobs for address in config.cluster[job])
    _refuse_anothers_address(hosts[index], config, me)
    return ClusterEnvironment(
        hosts=hosts,
        index=index,
        kind="tf_config",
        why=f"TF_CONFIG says {config.task_type} {config.task_index}, {index} of {len(hosts)} tasks",
    )


def _host_of(address: str) -> str:
    """The host in `host:port`.

    Raises:
        ClusterError: there is no port.
    """
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ClusterError(
            f"TF_CONFIG's addresses must be host:port; found {address!r}. Add the port."
        )
    return host.strip("[]")


def _refuse_what_is_no_member(text: str) -> None:
    try:
        document = json.loads(text)
        sparse, task = "sparseCluster" in document, document.get("task", {}).get("type")
    except (ValueError, TypeError, AttributeError):
        return  # whoever reads all of it says what is wrong
    if sparse:
        raise ClusterError(
            "TF_CONFIG has a sparseCluster, in which a task does not know the others. In the TFJob "
            "leave out enableDynamicWorker."
        )
    if task == "evaluator":
        raise ClusterError(
            "TF_CONFIG says evaluator, but all workers of Phalanx evaluate together, in step. "
            "Leave the evaluator out of the job, or start the script there without phalanx run."
        )


def _refuse_anothers_address(host: str, config: TFConfig, me: LocalHost | None) -> None:
    """Only an address can be held against the machine's own: a name may mean a proxy."""
    if me is None or not is_address(host) or host in ANY or me.is_host(host):
        return
    raise ClusterError(
        f"TF_CONFIG says that {config.task_type} {config.task_index} is at {host}, but this "
        f"machine has the addresses {', '.join(sorted(me.addresses))}. Fix the task, or give "
        "--hosts."
    )
