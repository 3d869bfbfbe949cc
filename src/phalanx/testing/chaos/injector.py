"""Lets the faults of one worker happen as its training comes to their steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping

from phalanx.cluster.spec import WorkerSpec
from phalanx.cluster.tf_config import TFConfig
from phalanx.testing.chaos.acts import act, pause
from phalanx.testing.chaos.faults import Plan, Slow, WorkerFault
from phalanx.testing.chaos.marks import Marks

_log = logging.getLogger(__name__)

Act = Callable[[WorkerFault, Collection[int]], None]


class Injector:
    """Follows one worker's steps."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        marks: Marks,
        *,
        peers: Collection[int] = (),
        do: Act = act,
        sleep: Callable[[float], None] = pause,
    ) -> None:
        """Get ready; the first call of `reached` says where training begins.

        Args:
            plan: the whole plan; other workers' faults are left to them.
            rank: this worker.
            marks: what has happened in the run already.
            peers: the ports of all workers.
            do: does a fault.
            sleep: lets seconds pass.
        """
        self._faults = [
            (f"{number}-{type(fault).__name__}", fault)
            for number, fault in enumerate(plan)
            if isinstance(fault, WorkerFault) and fault.worker == rank
        ]
        self._marks = marks
        self._peers = peers
        self._do = do
        self._sleep = sleep
        self._step: int | None = None
        self._slow: list[tuple[int, Slow]] = []

    def reached(self, step: int) -> None:
        """Training has come to `step`; the faults of the steps since the last call happen.

        A step smaller than the last is another training's beginning. What lies before the
        beginning of a training is passed over: a run that went on from step 20 does not meet
        the faults of the first 20 steps.
        """
        before, self._step = self._step, step
        if before is None or step <= before:
            return
        for name, fault in self._faults:
            if before < fault.step <= step and (fault.every_attempt or self._marks.make(name)):
                _log.warning("chaos: %s", fault)
                if isinstance(fault, Slow):
                    self._slow.append((fault.step + fault.steps, fault))
                self._do(fault, self._peers)
        for end, slow in self._slow:
            steps = min(step + 1, end) - max(before + 1, slow.step)
            if steps > 0:
                self._sleep(slow.seconds * steps)


def rank_here(environment: Mapping[str, str]) -> int:
    """This process's rank: the launcher's word, else TF_CONFIG's, else 0."""
    spec = WorkerSpec.from_environment(environment)
    if spec is not None:
        return spec.rank
    config = TFConfig.from_environment(environment)
    return 0 if config is None else config.task_index


def peer_ports(environment: Mapping[str, str]) -> frozenset[int]:
    """The ports of all workers, as TF_CONFIG names them."""
    config = TFConfig.from_environment(environment)
    tasks = () if config is None else (t for job in config.cluster.values() for t in job)
    return frozenset(int(address.rpartition(":")[2]) for address in tasks)


def injector_here(plan: Plan, marks: Marks, rank: int | None = None) -> Injector:
    """For this process, by its environment."""
    rank = rank_here(os.environ) if rank is None else rank
    return Injector(plan, rank, marks, peers=peer_ports(os.environ))
