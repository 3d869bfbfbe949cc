"""One global batch, given whole: the element of it that a step takes."""

from __future__ import annotations

from typing import Any

from phalanx.data.batches import assert_same_split, cut, total_rows
from phalanx.distributed.topology import ReplicaTopology


def shard_batch(place: ReplicaTopology, data: Any) -> Any:
    """`(total, parts)` of the one batch `data`; see `phalanx.data.batches`.

    Args:
        place: this process's replicas.
        data: `(x,)`, `(x, y)` or `(x, y, sample_weight)` of tensors with rows along axis 0.

    Raises:
        DataError: the tensors' rows differ, so that they cannot be sharded together.
    """
    if place.total > 1:
        data = assert_same_split(data, place.total)
    replicas = range(place.first, place.first + place.local)
    return total_rows(data), tuple(cut(data, replica, place.total) for replica in replicas)
