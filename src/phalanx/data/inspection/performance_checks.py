"""Traps that cost time, and what cannot be resumed or known beforehand."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.data.inspection.inspected_dataset import InspectedDataset
from phalanx.data.inspection.inspection import DatasetFinding


def speed_traps(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    """All that concern time and batches."""
    yield from _no_batch(seen)
    yield from _uneven(seen)
    yield from _remainder(seen)
    yield from _length(seen)
    yield from _python(seen)
    yield from _one_by_one(seen)
    yield from _prefetch(seen)


def _no_batch(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    if not seen.batch_steps:
        yield DatasetFinding(
            trap="no-batch",
            weight="note",
            what="Nothing in the dataset makes batches.",
            why="fit takes the first axis of an element for the global batch.",
            remedy="Add .batch(global_batch_size), unless the elements are batches.",
        )


def _uneven(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    size = seen.batch_size or next((s.batch_size for s in seen.batch_steps if s.batch_size), None)
    if size is None or seen.replicas < 2:
        return
    if size < seen.replicas:
        yield DatasetFinding(
            trap="batch-smaller-than-replicas",
            weight="slow",
            what=f"A batch of {size} samples is for {seen.replicas} replicas.",
            why=f"{seen.replicas - size} of them have nothing to do in each step.",
            remedy=f"Take batches of {seen.replicas} or more, or fewer workers.",
        )
    elif size % seen.replicas:
        yield DatasetFinding(
            trap="batch-not-divisible",
            weight="note",
            what=f"A batch of {size} samples is for {seen.replicas} replicas.",
            why=f"The result is right, but {size % seen.replicas} of them have one sample more, "
            "for which the others wait, and shapes differ.",
            remedy=f"Take {size - size % seen.replicas} or "
            f"{size + seen.replicas - size % seen.replicas}.",
        )


def _remainder(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    if seen.batch_size is None and any(not step.drop_remainder for step in seen.batch_steps):
        yield DatasetFinding(
            trap="drop-remainder",
            weight="note",
            what="The last batch of a pass may be smaller: drop_remainder is not set.",
            why="The result is right; the step is traced for a second shape, which XLA compiles "
            "once more, and replicas can be left without a sample.",
            remedy="Set drop_remainder=True if the last samples of an epoch may be left out.",
        )


def _length(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    if seen.batches is None:
        yield DatasetFinding(
            trap="unknown-length",
            weight="slow" if seen.workers > 1 else "note",
            what="The number of batches is unknown.",
            why="Workers have to agree, some steps at once, on whether all have another batch.",
            remedy="Say it: dataset.apply(tf.data.experimental.assert_cardinality(n)).",
        )
    elif seen.batches == -1:
        yield DatasetFinding(
            trap="endless",
            weight="note",
            what="The dataset never ends.",
            why="An epoch has no end of its own.",
            remedy="Give fit steps_per_epoch, or leave .repeat() out: fit repeats on its own.",
        )


def _python(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    if seen.of("Generator") or any(s.kind == "FlatMap" and s.python for s in seen.steps):
        yield DatasetFinding(
            trap="generator",
            weight="slow",
            what="The elements come from a Python generator.",
            why="It runs on every worker, one element at a time, and its state cannot be saved: "
            "a resumed training reads it again from the start.",
            remedy="Give phalanx.data.pipeline an object with __len__ and __getitem__.",
        )
    elif any(step.python for step in seen.steps):
        yield DatasetFinding(
            trap="python-function",
            weight="slow",
            what="A step calls back into Python (py_function or numpy_function).",
            why="Python runs one such call at a time, whatever num_parallel_calls says.",
            remedy="Write it in TensorFlow's operations where that is possible.",
        )


def _one_by_one(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for step in seen.of("Map"):
        if not step.parallel:
            yield DatasetFinding(
                trap="sequential-map",
                weight="slow",
                what="A map works on one element at a time.",
                why="One core does all of it.",
                remedy="Set num_parallel_calls=tf.data.AUTOTUNE.",
            )


def _prefetch(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    if seen.last.kind not in ("Prefetch", "Options") or not seen.of("Prefetch"):
        yield DatasetFinding(
            trap="no-prefetch",
            weight="note",
            what="No prefetch ends the dataset.",
            why="phalanx.fit adds one; a custom training loop waits for every batch without it.",
            remedy="End with .prefetch(tf.data.AUTOTUNE).",
        )
