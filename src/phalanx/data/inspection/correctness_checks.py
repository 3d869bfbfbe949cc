"""Traps that change which samples a training sees, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.data.inspection.inspected_dataset import InspectedDataset, before
from phalanx.data.inspection.inspection import DatasetFinding

_PIPELINE = "phalanx.data.pipeline"
_FEW = 0.1


def order_traps(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    """All that concern the samples and their order."""
    yield from _shards(seen)
    yield from _unseeded(seen)
    yield from _disordered(seen)
    yield from _random_choices(seen)
    yield from _frozen_order(seen)
    yield from _blended_epochs(seen)
    yield from _whole_batches(seen)
    yield from _small_buffers(seen)


def _shards(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for step in seen.of("Shard"):
        if (step.shards or 1) < 2:
            continue
        yield DatasetFinding(
            trap="shard-by-hand",
            weight="wrong",
            what=f"The dataset is cut by hand into {step.shards} shards.",
            why="Phalanx hands each worker its rows of every batch: of a worker's own shard it "
            "would train on some rows, and no worker on the rest.",
            remedy="Leave .shard() out, or give the dataset to "
            "strategy.distribute_datasets_from_function, where every worker makes its own.",
        )
        for shuffle in before(step, "Shuffle"):
            if shuffle.seeds == (0, 0):
                yield DatasetFinding(
                    trap="unseeded-shuffle-before-shard",
                    weight="wrong",
                    what="A shuffle without a seed comes before .shard().",
                    why="Each worker cuts another order: samples come twice, or never.",
                    remedy="Shard first and shuffle then, or give shuffle a seed.",
                )


def _unseeded(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for step in seen.of("Shuffle"):
        if step.seeds == (0, 0):
            yield DatasetFinding(
                trap="unseeded-shuffle",
                weight="wrong" if seen.workers > 1 else "note",
                what="A shuffle has no seed, and no tf.random.set_seed came before it.",
                why="Each process draws an order of its own: with several workers samples come "
                "twice, or never.",
                remedy="Call keras.utils.set_random_seed first (phalanx run does), or give "
                "shuffle(seed=...).",
            )


def _disordered(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for step in seen.steps:
        if seen.is_disordered(step):
            yield DatasetFinding(
                trap="non-deterministic-order",
                weight="wrong" if seen.workers > 1 else "note",
                what=f"{step.kind} gives elements in the order in which they are ready.",
                why="That order differs between workers, and each would take its rows of other "
                "batches.",
                remedy="Leave deterministic=False out; it is seldom faster by much.",
            )


def _random_choices(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for step in seen.steps:
        if not step.random:
            continue
        chooses = step.kind in ("Filter", "TakeWhile", "FlatMap", "GroupByWindow")
        if chooses and (not step.seeded or step.parallel) and seen.workers > 1:
            yield DatasetFinding(
                trap="random-choice",
                weight="wrong",
                what=f"{step.kind} decides by random numbers without a seed.",
                why="Each worker leaves out other samples, so their batches differ.",
                remedy="Draw from tf.random.stateless_uniform with a seed from the sample.",
            )
        elif not chooses:
            yield DatasetFinding(
                trap="random-map",
                weight="note",
                what=f"{step.kind} draws random numbers whose state is kept.",
                why="Which sample gets which number depends on threads: a run cannot be repeated "
                "to the bit, nor resumed in the middle of an epoch with the same samples.",
                remedy=f"Use tf.random.stateless_*, or {_PIPELINE}(augment=...), whose seed "
                "follows from sample and epoch.",
            )


def _frozen_order(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for cache in seen.of("Cache"):
        if any(shuffle.reshuffles for shuffle in before(cache, "Shuffle")):
            yield DatasetFinding(
                trap="cache-after-shuffle",
                weight="note",
                what="A cache comes after a shuffle.",
                why="The order of the first epoch is kept, and every epoch has it.",
                remedy="Cache first and shuffle then.",
            )


def _blended_epochs(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for shuffle in seen.of("Shuffle"):
        repeats = before(shuffle, "Repeat")
        if any(repeat.count != 1 for repeat in repeats):
            yield DatasetFinding(
                trap="repeat-before-shuffle",
                weight="note",
                what="A repeat comes before a shuffle.",
                why="Samples of the next epoch come before all of this one were seen.",
                remedy="Shuffle first and repeat then.",
            )


def _whole_batches(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for shuffle in seen.of("Shuffle"):
        if before(shuffle, "Batch", "ParallelBatch", "PaddedBatch"):
            yield DatasetFinding(
                trap="batch-before-shuffle",
                weight="note",
                what="A batch comes before a shuffle.",
                why="Whole batches are shuffled: the same samples stay together in every epoch.",
                remedy="Shuffle first and batch then.",
            )


def _small_buffers(seen: InspectedDataset) -> Iterator[DatasetFinding]:
    for shuffle in seen.of("Shuffle"):
        length = int(shuffle.inputs[0].dataset.cardinality())
        buffer = shuffle.buffer_size or 0
        if length > 0 and 0 < buffer < _FEW * length:
            yield DatasetFinding(
                trap="small-shuffle-buffer",
                weight="note",
                what=f"A shuffle of {length} elements has a buffer of {buffer}.",
                why="A sample comes near the place where it lies: data sorted by class stays so.",
                remedy=f"Take a bigger buffer, or {_PIPELINE}, which shuffles all without one.",
            )
