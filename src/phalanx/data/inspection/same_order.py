"""Whether workers that each run the whole of a dataset see one order."""

from __future__ import annotations

import logging
import zlib
from typing import Any

from phalanx.data.inspection.inspect import inspect
from phalanx.data.place import ReplicaPlace
from phalanx.errors import DataError
from phalanx.seam.dataset_graph import transformations

_log = logging.getLogger("phalanx")


def order_checksum(dataset: Any, place: ReplicaPlace) -> int | None:
    """A number that differs between workers whose shuffles have different seeds.

    A shuffle without a seed takes one from TensorFlow's global seed and from how many were taken
    before: a script that draws random numbers on one worker alone moves that worker's on. What
    else is known to be wrong with several workers is said, by the chief.

    Raises:
        DataError: a shuffle has no seed at all, and workers would each draw their own.
    """
    if not place.has_peers:
        return None
    steps = list(transformations(dataset).walk())
    seeds = [step.seeds for step in steps if step.seeds is not None]
    if (0, 0) in seeds:
        raise DataError(
            f"Asked to share out a shuffled dataset between {place.workers} workers; found a "
            "shuffle without a seed, whose order would differ on each. Call "
            "keras.utils.set_random_seed before it (phalanx run does), or give shuffle(seed=...)."
        )
    if place.is_chief:
        for finding in inspect(dataset, workers=place.workers, replicas=place.total).findings:
            if finding.weight == "wrong":
                _log.warning("%s %s %s", finding.what, finding.why, finding.remedy)
    return zlib.crc32(repr(seeds).encode()) if seeds else None
