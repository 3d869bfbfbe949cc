"""Results of steps, kept on a server until the chief has received them.

The unreported results of a lost worker are lost with it. So a step writes its results to a server,
after its update is written and before its batch counts as done; the chief removes what it has
received, and after a loss reads what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_MANY = 64
_BATCHES = 1 << 36
"""More than anybody takes of one pass."""


class ResultLedger:
    """A table on the first server: results by pass, worker and batch."""

    def __init__(self, workers: int) -> None:
        """Make it, empty, for so many workers."""
        self._workers = workers
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "")
        self._seen: set[int] = set()
        self._recovered: set[int] = set()
        self._dtypes: list[Any] = []

    def record_results(self, number: Any, worker: Any, batch: Any, outputs: Sequence[Any]) -> Any:
        """In a worker's graph: keep `outputs`; an operation to wait for."""
        self._dtypes = [output.dtype for output in outputs]
        content = tf.stack([tf.io.serialize_tensor(output) for output in outputs])
        return self._table.insert(self._key(number, worker, batch), tf.io.serialize_tensor(content))

    def is_news(self, number: int, worker: int, batch: int) -> bool:
        """Note that the chief has received a step; whether it had not before."""
        key = self._key(number, worker, batch)
        if key in self._recovered:
            return False
        self._seen.add(key)
        if len(self._seen) >= _MANY:
            self._acknowledge()
        return True

    def take(self) -> list[list[Any]]:
        """Results that the chief has not received; from now on, it has."""
        self._acknowledge()
        keys, contents = self._table.export()
        new = [(int(k), c) for k, c in zip(keys.numpy(), contents, strict=True)]
        self._recovered.update(key for key, _ in new)
        self._table.remove(keys)
        return [self._read(content) for _, content in sorted(new, key=lambda each: each[0])]

    def _acknowledge(self) -> None:
        if self._seen:
            self._table.remove(tf.constant(sorted(self._seen), tf.int64))
            self._seen.clear()

    def _read(self, content: Any) -> list[Any]:
        parts = tf.io.parse_tensor(content, tf.string)
        return [tf.io.parse_tensor(parts[i], dtype).numpy() for i, dtype in enumerate(self._dtypes)]

    def _key(self, number: Any, worker: Any, batch: Any) -> Any:
        """One number for a pass, a worker and a batch."""
        return (number * self._workers + worker) * _BATCHES + batch
