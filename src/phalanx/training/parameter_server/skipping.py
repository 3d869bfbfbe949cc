"""What of a pass over a dataset was trained before, and how to leave it out.

A pass that is gone on with is read again. The n-th batch of it was worker n modulo W's, who
had done so many of its own: so a batch's number tells whether it is left, and those that are
left may be shared out among another number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.data.batches import as_written

ALL = int(tf.int64.max)
"""Batches of a worker that has done its part."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What of one pass was trained before.

    Attributes:
        number: the pass.
        rounds: for each time that it was broken off, how many batches each worker had done then,
            of what was left by the times before.
        by_worker: whether each worker has data of its own, and not each W-th batch.
    """

    number: int = 0
    rounds: tuple[tuple[int, ...], ...] = ()
    by_worker: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"pass": self.number, "rounds": [list(r) for r in self.rounds]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, by_worker: bool) -> Done:
        """What `to_json` gave."""
        rounds = tuple(tuple(int(n) for n in counts) for counts in document["rounds"])
        return cls(number=int(document["pass"]), rounds=rounds, by_worker=by_worker)

    def and_then(self, number: int, counts: Sequence[int]) -> Done:
        """With what was done of pass `number` since."""
        before = self.rounds if number == self.number else ()
        new = (tuple(counts),) if any(counts) else ()
        return Done(number=number, rounds=before + new, by_worker=self.by_worker)

    def leave_out(self, dataset: Any, number: Any, worker: Any) -> Any:
        """The batches of pass `number` (a tensor) that are left; in a graph, on a worker."""
        for counts in self.rounds:
            dataset = self._without(dataset, tf.constant(counts, tf.int64), number, worker)
        return dataset

    def _without(self, dataset: Any, counts: Any, number: Any, worker: Any) -> Any:
        workers = tf.size(counts, out_type=tf.int64)

        def is_left(place: Any, *batch: Any) -> Any:
            del batch
            who, which = (worker, place) if self.by_worker else (place % workers, place // workers)
            return (number != self.number) | (which >= tf.gather(counts, who))

        left = dataset.enumerate().filter(as_written(is_left))
        return left.map(as_written(lambda place, batch: batch))
