"""Where data of unknown length ends: at the same step on every worker, or in an error."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from phalanx.data.prefetch_counter import Lookahead
from phalanx.distributed.host_collectives import all_gather_rows
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import DataError
from phalanx.monitoring.phase_tracker import phase_tracker

UnevenInputs = Literal["error", "stop"]
"""What is done with data that differs in length between workers."""

_log = logging.getLogger(__name__)
_TIMEOUT = 10.0  # seconds in which an element comes, or a step is tried without knowing


class EndOfDataSync:
    """Finds how many steps all workers have data for; a collective for some of them at once."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        topology: ReplicaTopology,
        source: Any,
        uneven: UnevenInputs,
    ) -> None:
        """Ask about the passes over `source`, whose `ahead` looks ahead."""
        self._strategy = strategy
        self._topology = topology
        self._source = source
        self._uneven = uneven
        self._until = 0

    def __call__(self, taken: int, iterator: Any) -> int:
        """Steps that all workers can take after `taken` of this pass; 0 where it ends.

        Raises:
            DataError: the data of some workers has ended, that of others has not.
            Exception: whatever ended this worker's data before its end.
        """
        if taken == 0:
            self._until = 0
        while self._until <= taken:
            ahead: Lookahead = self._source.ahead
            with phase_tracker.during("input", instead_of="compute"):
                ready, ended = ahead.wait(taken, _TIMEOUT)
            if ended and not ready:
                _raise_what_ended(iterator)  # here, before the others receive the end
            rows = all_gather_rows(
                self._strategy, self._topology, np.array([ready, ended], np.int64)
            )
            all_ready, all_ended = rows[:, 0], rows[:, 1].astype(bool)
            fewest = int(all_ready.min())
            if fewest == 0:
                if not all_ended.any():
                    return 1  # making the element takes long or failed: taking it shows which
                if (all_ended | (all_ready > 0)).all():
                    return self._end(taken, all_ready, all_ended)
            self._until = taken + fewest
        return self._until - taken

    def _end(self, taken: int, ready: Any, ended: Any) -> int:
        if not ready.any():
            return 0
        lengths = ", ".join(
            f"worker {rank}: {'' if done else 'at least '}{taken + n}"
            for rank, (n, done) in enumerate(zip(ready, ended, strict=True))
        )
        if self._uneven == "error":
            raise DataError(
                f"The data differs in length between workers; found batches: {lengths}. Give every "
                "worker the same global data (Phalanx hands each its share), or end with the "
                'shortest: fit(..., uneven_data="stop").'
            )
        if self._topology.is_chief:
            _log.warning("The data ends with the shortest; found batches: %s.", lengths)
        return 0


def _raise_what_ended(iterator: Any) -> None:
    """A pipeline that fails looks as if it had ended: only taking an element raises."""
    with suppress(StopIteration, tf.errors.OutOfRangeError):
        next(iterator)
