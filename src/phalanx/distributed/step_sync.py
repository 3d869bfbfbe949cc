"""Steps at which all workers synchronize, to learn what only one of them knows.

A worker that acts alone on an elapsed timer or on a signal would leave the others waiting in a
collective. So the workers synchronize about once a second, at steps that the chief proposes and all
know, and then do the same. One synchronization is one small all-gather.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from phalanx.distributed.host_collectives import all_gather_rows
from phalanx.distributed.topology import ReplicaTopology

_SECONDS_BETWEEN = 1.0
_MOST_STEPS = 10_000


class StepSync:
    """Decides at which steps workers synchronize, and exchanges flags there."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        topology: ReplicaTopology,
        *,
        clock: Callable[[], float],
    ) -> None:
        """Start; the first synchronization is after the first step.

        Args:
            strategy: the strategy that the workers share.
            topology: this worker's replicas.
            clock: seconds, increasing.
        """
        self._strategy = strategy
        self._topology = topology
        self._clock = clock
        self._next = 0
        self._last: tuple[int, float] | None = None

    def is_due(self, step: int) -> bool:
        """Whether to synchronize after `step`; the same answer on every worker."""
        return step >= self._next

    def sync(self, step: int, *, from_chief: bool, from_any: bool) -> tuple[bool, bool]:
        """Exchange two flags: a collective that all workers call after the same step.

        Args:
            step: the number of steps trained.
            from_chief: a flag of which only the chief's value counts.
            from_any: a flag that any worker can set.

        Returns:
            The chief's first flag, and whether any worker has set the second.
        """
        own = np.array([from_chief, from_any, self._steps_ahead(step)], np.int64)
        rows = (
            all_gather_rows(self._strategy, self._topology, own)
            if self._topology.has_peers
            else [own]
        )
        self._next = step + int(rows[0][2])
        return bool(rows[0][0]), any(bool(row[1]) for row in rows)

    def _steps_ahead(self, step: int) -> int:
        now, last = self._clock(), self._last
        self._last = (step, now)
        if last is None or step <= last[0]:
            return 1
        seconds_a_step = (now - last[1]) / (step - last[0])
        return max(1, min(int(_SECONDS_BETWEEN / max(seconds_a_step, 1e-6)), _MOST_STEPS))
