"""Steps because of which every worker maps all samples: `phalanx.data.pushdown`'s obstacles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phalanx.data.inspection.inspection import DatasetFinding
from phalanx.data.pushdown import Obstacle

_PIPELINE = "phalanx.data.pipeline"
_FIRST_EPOCH = ("cache-order", "cache-moves")  # after it, a cache has all
_ADVICE: dict[str, tuple[str, str]] = {
    "random": (
        "draws random numbers, which depend on how many were drawn for other samples ({detail}).",
        "Draw from tf.random.stateless_uniform with a seed from the sample, let the model augment "
        f"(Keras's random layers), or use {_PIPELINE}(augment=...).",
    ),
    "python": (
        "calls Python, which may keep a state.",
        "Write it in TensorFlow's operations. If the result depends on the sample alone, "
        "tf.numpy_function(..., stateful=False) says so.",
    ),
    "state": (
        "changes a state ({detail}).",
        "Leave the state out of the function. Random layers of Keras have one: put them into the "
        "model.",
    ),
    "filter": (
        "decides by the sample which samples there are.",
        "Filter before the map, by what is known then.",
    ),
    "cache-order": (
        "keeps samples of which each pass takes others, because {detail} comes after it.",
        "Nothing, if the cache holds all samples after the first epoch. "
        f"{_PIPELINE}(cache=...) keeps samples by their number.",
    ),
    "cache-file": (
        "writes a file, which would have the rows of one worker.",
        f"Leave the name of the file out, or use {_PIPELINE}(cache='disk:...').",
    ),
    "cache-moves": (
        "keeps samples that depend on when they were read: a shuffle or a state comes before it.",
        "Cache first and shuffle then. If the cache holds all samples after the first epoch, "
        "nothing.",
    ),
    "inner-map": (
        "has the maps in its own function.",
        "Let its function give what is read, and put the map after it.",
    ),
    "padding": (
        "gives a batch the length of its longest sample, which may be another worker's.",
        f"Give padded_shapes with fixed lengths, or use {_PIPELINE}(padding=...).",
    ),
    "batch-map": (
        "works on whole batches, and its result for a row may depend on other rows.",
        "Put it before the batch, if it treats samples independently.",
    ),
    "memory": (
        "shuffles what maps have made from arrays in memory.",
        "Shuffle what is small first (numbers, names), and map then.",
    ),
    "order": (
        "may give its elements in the order in which they are ready.",
        "Leave deterministic=False out.",
    ),
    "no-batch": ("makes no batches.", "Make batches by .batch()."),
    "other": (
        "is a step of which Phalanx does not know whether it depends on the samples' values.",
        "Put the maps after it.",
    ),
}


def mapped_by_all(obstacles: Iterable[Obstacle], workers: int) -> Iterator[DatasetFinding]:
    """What keeps a worker from mapping its own rows only."""
    for obstacle in obstacles:
        what, remedy = _ADVICE[obstacle.reason]
        yield DatasetFinding(
            trap="mapped-by-all",
            weight="note" if obstacle.reason in _FIRST_EPOCH else "slow",
            what=f"{obstacle.step.kind} {what.format(detail=obstacle.detail)}",
            why=f"Each of {workers} workers runs it, and all before it, on all samples.",
            remedy=remedy,
        )
