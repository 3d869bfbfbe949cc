"""What a TF_CONFIG variable says: the cluster that somebody else has set up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import ClusterError

_SYNCHRONOUS_JOBS = ("chief", "worker")


@dataclass(frozen=True, kw_only=True)
class TFConfig:
    """A TF_CONFIG: the addresses of each job, and this process's task.

    Attributes:
        cluster: `host:port` of every task, by job name.
        task_type: this process's job, such as "worker" or "chief".
        task_index: this process's index within its job.
    """

    cluster: Mapping[str, tuple[str, ...]]
    task_type: str
    task_index: int

    @property
    def synchronous_tasks(self) -> int:
        """How many tasks train in step with each other: the chief's and the workers'."""
        return sum(len(self.cluster.get(job, ())) for job in _SYNCHRONOUS_JOBS)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> TFConfig | None:
        """The TF_CONFIG of `environment`; None when there is none or it names no cluster.

        Raises:
            ClusterError: it is there but is not valid JSON, or names no task of its cluster.
        """
        text = environment.get("TF_CONFIG", "").strip()
        if not text:
            return None
        try:
            document = json.loads(text)
            jobs = document.get("cluster") or {}
            if not jobs:
                return None
            cluster = {job: _addresses(tasks) for job, tasks in jobs.items()}
            task_type = str(document["task"]["type"])
            task_index = int(document["task"]["index"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ClusterError(
                'TF_CONFIG must hold JSON such as {"cluster": {"worker": ["host:port"]}, '
                f'"task": {{"type": "worker", "index": 0}}}}; found {text!r} '
                f"({type(error).__name__}: {error}). Fix it, or unset it."
            ) from error
        if not 0 <= task_index < len(cluster.get(task_type, ())):
            raise ClusterError(
                f"TF_CONFIG says this process is {task_type} {task_index}, but its cluster has "
                f"{ {job: len(tasks) for job, tasks in cluster.items()} }. Fix the task or "
                "the cluster."
            )
        return cls(cluster=cluster, task_type=task_type, task_index=task_index)


def _addresses(tasks: object) -> tuple[str, ...]:
    """A job's addresses; TensorFlow also writes them as {index: address}."""
    if isinstance(tasks, Mapping):
        return tuple(str(tasks[index]) for index in sorted(tasks, key=int))
    if isinstance(tasks, list):
        return tuple(str(task) for task in tasks)
    raise TypeError(f"a job's tasks must be a list, found {tasks!r}")
