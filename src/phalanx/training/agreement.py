"""Before workers work together: do they want the same?

Workers that were given data of different lengths, or models of different shapes, would
hang in a collective or train something wrong. One small gather at the start of a call
tells, and the error names who differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.place import ReplicaPlace
from phalanx.errors import DisagreementError
from phalanx.training.exchange import all_gather_rows

_UNKNOWN = -1


def agree(
    strategy: tf.distribute.Strategy,
    place: ReplicaPlace,
    call: str,
    wishes: Mapping[str, Any],
    seed: int | None,
) -> int | None:
    """Compare this worker's wishes with its peers', and take the chief's seed.

    Args:
        strategy: the strategy that the workers share.
        place: this worker's place.
        call: "fit", "evaluate" or "predict", for the message.
        wishes: what must be the same on every worker, by name; integers are shown, any
            other value is compared by its text.
        seed: this worker's draw; None for the order that Keras draws.

    Returns:
        The chief's seed.

    Raises:
        DisagreementError: a worker wants something else than the chief.
    """
    if not place.has_peers:
        return seed
    mine = np.array([_as_integer(seed), *(_as_integer(w) for w in wishes.values())], np.int64)
    all_wishes = all_gather_rows(strategy, place, mine)
    for column, name in enumerate(wishes, start=1):
        values = [int(row[column]) for row in all_wishes]
        if len(set(values)) > 1:
            raise DisagreementError(_explain(call, name, values, wishes[name]))
    chiefs = int(all_wishes[0][0])
    return None if chiefs == _UNKNOWN else chiefs


def _as_integer(wish: Any) -> int:
    if wish is None:
        return _UNKNOWN
    if isinstance(wish, (bool, int, np.integer)):
        return int(wish)
    return int.from_bytes(hashlib.sha256(repr(wish).encode()).digest()[:6], "big")


def _explain(call: str, name: str, values: list[int], mine: Any) -> str:
    if isinstance(mine, (bool, int, np.integer)) or mine is None:
        shown = ", ".join(
            f"worker {rank}: {'unknown' if v == _UNKNOWN else v}" for rank, v in enumerate(values)
        )
    else:
        odd = [rank for rank, v in enumerate(values) if v != values[0]]
        shown = f"worker(s) {odd} differ from worker 0; here it is {mine!r}"
    return (
        f"{call} needs the same {name} on every worker; found {shown}. Give every worker the "
        "same global data (Phalanx hands each its share), model and arguments."
    )
