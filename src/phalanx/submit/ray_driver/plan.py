"""The plan that the driver of a Ray job gets, as JSON in its command."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from phalanx.cluster.environments.ray import HOSTS, INDEX, JOB
from phalanx.errors import ConfigurationError
from phalanx.launcher.env_file import carried_env


@dataclass(frozen=True, kw_only=True)
class RayPlan:
    """A launcher in each bundle.

    Attributes:
        name: the run's name.
        run_dir: the directory of all runs, which all nodes share.
        words: `phalanx run` as each launcher is started, but for the program and the number of
            workers.
        min_launchers: the fewest bundles to continue with.
        max_launchers: the wanted number of bundles.
        cpus: CPUs of each.
        gpus: GPUs of each.
        max_node_failures: how often to restart after a node was lost.
        placement_timeout: seconds to wait for all bundles before fewer are taken.
        python: starts the launchers; None takes the Python of Ray's own processes.
        directory: where launchers work, on nodes that have it; None leaves it to Ray.

    Raises:
        ConfigurationError: one of them cannot work.
    """

    name: str
    run_dir: str
    words: tuple[str, ...]
    min_launchers: int
    max_launchers: int
    cpus: float = 1.0
    gpus: float = 0.0
    max_node_failures: int = 10
    placement_timeout: float = 60.0
    python: str | None = None
    directory: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_launchers <= self.max_launchers:
            raise ConfigurationError(
                f"--workers {self.min_launchers}:{self.max_launchers} must be at least 1, and MIN "
                "at most MAX."
            )
        if (
            self.cpus <= 0
            or self.gpus < 0
            or self.max_node_failures < 0
            or self.placement_timeout < 0
        ):
            raise ConfigurationError(
                "--cpus-per-worker must be more than 0, --gpus-per-worker, --max-node-failures and "
                f"--placement-timeout 0 or more; found {self.cpus:g}, {self.gpus:g}, "
                f"{self.max_node_failures} and {self.placement_timeout:g}."
            )

    @property
    def bundle(self) -> dict[str, float]:
        """What Ray calls one bundle."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def launcher(self, workers: int) -> list[str]:
        """The command of each of `workers` launchers, without the program."""
        first, *rest = self.words
        return [first, "--cluster", "ray", "--workers", str(workers), *rest]

    def variables(self, hosts: Sequence[str], index: int, start: int) -> dict[str, str]:
        """The environment variables of a launcher.

        Args:
            hosts: of all launchers.
            index: which of them this is.
            start: counts the starts of the run: launchers must not connect to those of an earlier
                one.
        """
        variables = {HOSTS: ",".join(hosts), INDEX: str(index), JOB: f"{self.name}-{start}"}
        # Ray makes all GPUs of a node visible to processes that have reserved none.
        none = {} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        return {**none, "PYTHONUNBUFFERED": "1", **carried_env(os.environ), **variables}

    def to_json(self) -> str:
        """For the driver's command."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RayPlan:
        """What `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "words": tuple(fields["words"])})
