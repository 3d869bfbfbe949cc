"""The Ray cluster, as the driver sees it: bundles of resources, and launchers in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from phalanx.errors import LaunchError
from phalanx.submit.ray_driver.launcher_actor import LauncherActor, LauncherStatus
from phalanx.submit.ray_driver.plan import RayPlan

_BEGIN = 120.0
"""Seconds for an actor's process to start."""
_END = 10.0


class RayCluster:
    """The cluster of the job that this process is the entrypoint of."""

    def __init__(self, plan: RayPlan, *, on_output: Callable[[int, str], None]) -> None:
        """Join the cluster.

        Args:
            plan: the bundles and the command.
            on_output: takes what the launcher of a bundle has said, line by line.
        """
        self._plan = plan
        self._on_output = on_output
        ray.init(log_to_driver=False)

    def request(self, count: int) -> LaunchRequest:
        """Request `count` bundles, for which Ray may have to wait or to add nodes."""
        return LaunchRequest(count, self._plan.bundle)

    def describe_resources(self) -> str:
        """The free resources as text."""
        total, free = ray.cluster_resources(), ray.available_resources()
        alive = sum(node["Alive"] for node in ray.nodes())
        named = [
            f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in ("CPU", "GPU")
        ]
        return f"{' and '.join(named)} free on {alive} nodes"

    def start(self, requests: Sequence[Any], number: int) -> LauncherGroup:
        """Start a launcher in each bundle of the requests, which are all assigned.

        Args:
            requests: the bundles, as `request` gave them.
            number: which start this is, from 0.

        Raises:
            LaunchError: a bundle was lost at once, or its launcher could not be started.
        """
        launchers = LauncherGroup(requests, self._on_output)
        try:
            launchers.start(self._plan, number)
        except (ray.exceptions.RayError, TimeoutError) as error:
            launchers.end()
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise LaunchError(
                f"Asked Ray for a launcher in each of {len(launchers.codes)} bundles; found that "
                f"one could not be started: {reason}. Phalanx must be installed on every node, and "
                f"{self._plan.run_dir} be a directory that all may write to."
            ) from error
        return launchers


class LaunchRequest:
    """Bundles that were requested: a placement group, spread over the nodes as far as possible.

    https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html
    """

    def __init__(self, count: int, bundle: dict[str, float]) -> None:
        self.count = count
        self.group = ray.util.placement_group([bundle] * count, strategy="SPREAD")

    def is_ready(self) -> bool:
        """Whether all bundles are assigned."""
        return bool(self.group.wait(timeout_seconds=0.1))

    def release(self) -> None:
        """Release the bundles, or cancel the request."""
        ray.util.remove_placement_group(self.group)


class LauncherGroup:
    """The launchers of one start; see `phalanx.submit.ray_driver.driver.LauncherGroup`."""

    def __init__(
        self, requests: Sequence[LaunchRequest], on_output: Callable[[int, str], None]
    ) -> None:
        self._on_output = on_output
        self._pending: dict[int, Any] = {}
        self._actors = [
            _actor(request, bundle) for request in requests for bundle in range(request.count)
        ]
        self.hosts: tuple[str, ...] = ()
        self.codes: list[int | None] = [None] * len(self._actors)
        self.lost: set[int] = set()

    def start(self, plan: RayPlan, number: int) -> None:
        """Start them, once their nodes are known."""
        addresses = [actor.address.remote() for actor in self._actors]
        self.hosts = tuple(ray.get(addresses, timeout=_BEGIN))
        words = plan.launcher(len(self.hosts))
        logs = Path(plan.run_dir)
        started = [
            actor.start.remote(
                words,
                plan.variables(self.hosts, index, number),
                log=str(logs / f"{plan.name}.launcher-{index}.log"),
                python=plan.python,
                directory=plan.directory,
            )
            for index, actor in enumerate(self._actors)
        ]
        ray.get(started, timeout=_BEGIN)

    def poll(self, seconds: float) -> set[int]:
        """Update the status of those that answer within `seconds`; gives their indices."""
        for index, actor in enumerate(self._actors):
            if index not in self.lost and index not in self._pending:
                self._pending[index] = actor.poll.remote()
        if self._pending:
            answers = list(self._pending.values())
            ray.wait(answers, num_returns=len(answers), timeout=seconds)
        ready = {i for i, answer in self._pending.items() if ray.wait([answer], timeout=0)[0]}
        return {index for index in ready if self._take(index, self._pending.pop(index))}

    def check(self, seconds: float) -> None:
        """Count those as lost that do not answer within `seconds`."""
        self.lost |= set(range(len(self._actors))) - self.poll(seconds)

    def signal(self, number: int) -> None:
        """Send a signal to the leading launcher, which passes it on."""
        self._actors[0].signal.remote(number)

    def end(self) -> None:
        """Kill what runs, and take its last output."""
        for index, actor in enumerate(self._actors):
            if index not in self.lost:
                actor.end.remote()
        self.poll(_END)
        self.poll(_END)  # The first poll may have started before the end.
        for actor in self._actors:
            ray.kill(actor)

    def _take(self, index: int, answer: Any) -> bool:
        try:
            seen: LauncherStatus = ray.get(answer)
        except ray.exceptions.ActorUnavailableError:
            return False  # It may come back; polled again the next time.
        except ray.exceptions.RayActorError:
            self.lost.add(index)
            return False
        self.codes[index] = seen.code
        if seen.output:
            self._on_output(index, seen.output)
        return True


def _actor(request: LaunchRequest, index: int) -> Any:
    """An actor that has a bundle of its own, and is not restarted on another node."""
    bundle = request.group.bundle_specs[index]
    return (
        ray.remote(LauncherActor)
        .options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                request.group, placement_group_bundle_index=index
            ),
        )
        .remote()
    )
