"""Processes that serve a chief, and which workers are replaced while the others continue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from phalanx.cluster.spec import DeviceSpec, WorkerSpec
from phalanx.launcher.process import WorkerHandle
from phalanx.launcher.resources import ResourceAllocation
from phalanx.launcher.restart_policy import GiveUp, RestartBudget
from phalanx.launcher.root_cause import WorkerExit, is_port_conflict

MOST_REPLACEMENTS = 10
"""Of the workers of one attempt, all together: more than that is no accident."""


def add_chief_and_ps(
    workers: Sequence[ResourceAllocation], servers: int
) -> list[ResourceAllocation]:
    """The shares of a whole worker group, by rank: a chief, the workers, the servers.

    The chief and the servers compute on CPUs, whatever the workers do.
    """
    on_cpu = ResourceAllocation(devices=DeviceSpec(count=1, kind="cpu"), threads=None, gpus=None)
    return [on_cpu, *workers, *[on_cpu] * servers]


class Replacements:
    """Starts a worker again that the others can do without for a while."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        *,
        start: Callable[[WorkerSpec], WorkerHandle],
        on_replaced: Callable[[WorkerExit, WorkerHandle], None],
        restarts: RestartBudget | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with all replacements left.

        Args:
            specs: the worker group, by rank.
            start: starts a worker.
            on_replaced: called with how the old one ended, and with its replacement.
            restarts: what `--max-restarts` leaves, for workers that are independent.
            now: seconds, increasing.
        """
        self._restarts = restarts
        self._now = now
        self._started = {spec.rank: now() for spec in specs}
        self._specs = specs
        self._start = start
        self._on_replaced = on_replaced
        self._left = MOST_REPLACEMENTS

    def __call__(self, ending: WorkerExit) -> WorkerHandle | None:
        """Who takes the place of a process that failed; None where none can.

        A chief knows where training is, and a server has variables: those are not replaced. Workers
        in step wait for each other, so one that fails ends them all.
        """
        spec = self._specs[ending.rank]
        if spec.independent and self._restarts is not None:
            lasted = self._now() - self._started[ending.rank]
            if isinstance(self._restarts.after(ending, lasted=lasted), GiveUp):
                return None
        elif spec.serves and spec.role == "worker" and not is_port_conflict(ending) and self._left:
            self._left -= 1
        else:
            return None
        self._started[ending.rank] = self._now()
        handle = self._start(spec)
        self._on_replaced(ending, handle)
        return handle
