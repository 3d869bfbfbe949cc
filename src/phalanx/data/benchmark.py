"""How many samples a second a pipeline gives up to each of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.data.batches import no_autograph
from phalanx.data.inspection.inspected_dataset import BATCHES
from phalanx.data.pipelines.indexed import IndexedPipeline
from phalanx.data.pipelines.registry import pipeline_of
from phalanx.data.service.data_service import ServicePipeline
from phalanx.data.streams.stream_pipeline import StreamPipeline
from phalanx.distributed.topology import ReplicaTopology
from phalanx.keras_compat.dataset_graph import Transformation, transformations

SECONDS = 1.0
_MOST = 1 << 40
_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class StageSpeed:
    """One stage of a pipeline.

    Attributes:
        name: what it does: the name of `tf.data`'s step, or of `pipeline`'s argument.
        rate: samples a second of the pipeline up to here.
    """

    name: str
    rate: float


def stage_speeds(
    dataset: tf.data.Dataset,
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[StageSpeed, ...]:
    """Run a dataset's pipeline up to each of its stages, for about so long each.

    Args:
        dataset: of `phalanx.data.pipeline`, or any other.
        seconds: for each stage.
        clock: seconds.
    """
    return tuple(
        StageSpeed(name=name, rate=_rate(stage, batched, seconds, clock))
        for name, stage, batched in _stages(dataset)
    )


def _stages(dataset: tf.data.Dataset) -> Iterator[tuple[str, tf.data.Dataset, bool]]:
    known = pipeline_of(dataset)
    if isinstance(known, (IndexedPipeline, StreamPipeline)):
        yield from _stages_of(known)
        return
    step: Transformation | None = transformations(dataset)
    steps = []
    while step is not None:
        steps.append(step)
        step = step.inputs[0] if step.inputs else None
    for step in reversed(steps):
        if step.kind != "Options":
            yield step.kind, step.dataset, any(one.kind in BATCHES for one in step.walk())


def _stages_of(
    pipeline: IndexedPipeline | StreamPipeline,
) -> Iterator[tuple[str, tf.data.Dataset, bool]]:
    options, topology = pipeline.options, ReplicaTopology()
    plain = replace(options, cache=None, cache_key=None, map=None, augment=None, map_batches=None)
    mapped = replace(plain, map=options.map)
    changed = replace(mapped, augment=options.augment)
    whole = replace(changed, map_batches=options.map_batches)
    stages = {
        "read, shuffle, batch": plain,
        "map": mapped if options.map else None,
        "augment": changed if options.augment else None,
        "map_batches": whole if options.map_batches else None,
    }
    for name, chosen in stages.items():
        if chosen is not None and isinstance(pipeline, IndexedPipeline):
            yield name, IndexedPipeline(pipeline.source, chosen).dataset(topology), True
        elif chosen is not None and isinstance(pipeline, StreamPipeline):
            yield name, StreamPipeline(pipeline.source, chosen).dataset(topology), True
    if options.cache or isinstance(pipeline, ServicePipeline):
        yield "cache" if options.cache else "service", pipeline.dataset(topology), True


def _rate(
    dataset: tf.data.Dataset, batched: bool, seconds: float, clock: Callable[[], float]
) -> float:
    """Samples a second; what a pass costs at its start, in files and traces, is taken off."""

    def timed(elements: int) -> tuple[int, float]:
        begin = clock()
        samples = _run(dataset, elements, batched)
        return samples, clock() - begin

    timed(1)
    few, start = timed(1)
    elements = 2
    while True:
        samples, took = timed(elements)
        if took - start >= seconds or elements >= _MOST:
            return (samples - few) / max(took - start, 1e-9)
        factor = seconds / max(took - start, 0.1 * seconds)
        elements = int(elements * 1.5 * factor) + 1


def _run(dataset: tf.data.Dataset, elements: int, batched: bool) -> int:
    taken = dataset.repeat().take(elements)
    if not batched and all(
        s.shape.is_fully_defined() for s in tf.nest.flatten(dataset.element_spec)
    ):
        taken, batched = taken.batch(_AT_ONCE), True  # else counting is slower than what it counts

    def counted(count: Any, *element: Any) -> Any:
        rows = tf.shape(tf.nest.flatten(element)[0], tf.int64)[0] if batched else 1
        return count + rows

    return int(taken.reduce(np.int64(0), no_autograph(counted)))
