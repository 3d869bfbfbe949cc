"""`phalanx.data.inspect`: how a dataset will be shared out, what it costs, its traps."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.data.inspection.correctness_checks import order_traps
from phalanx.data.inspection.inspected_dataset import InspectedDataset
from phalanx.data.inspection.inspection import Inspection, worst_first
from phalanx.data.inspection.mapped_rows import mapped_by_all
from phalanx.data.inspection.performance_checks import speed_traps
from phalanx.data.pushdown import Pushdown, plan
from phalanx.distributed.topology import topology_of
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.dataset_graph import transformations


def inspect(
    dataset: tf.data.Dataset, *, workers: int | None = None, replicas: int | None = None
) -> Inspection:
    """Say how `fit` will share out a `tf.data.Dataset`; nothing of it is read.

    Args:
        dataset: global batches, as they would be handed to `fit`.
        workers: processes that will read it; those of the current strategy by default.
        replicas: replicas in all of them; those of the current strategy by default, or one
            for each worker.

    Raises:
        ConfigurationError: that is no `tf.data.Dataset`, or there are fewer replicas than workers.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigurationError(
            f"phalanx.data.inspect looks at a tf.data.Dataset; found {type(dataset).__name__}. "
            "Arrays need no look: every worker computes its own rows of one order."
        )
    if workers is None:
        topology = topology_of(tf.distribute.get_strategy())
        workers, replicas = topology.workers, replicas or topology.total
    replicas = replicas or workers
    if not 1 <= workers <= replicas:
        raise ConfigurationError(
            f"phalanx.data.inspect needs at least one worker, and a replica in each; found "
            f"workers={workers}, replicas={replicas}."
        )
    length = int(dataset.cardinality())
    seen = InspectedDataset(
        last=transformations(dataset),
        workers=workers,
        replicas=replicas,
        batches=None if length == tf.data.UNKNOWN_CARDINALITY else length,
        batch_size=_rows(dataset.element_spec),
        deterministic=dataset.options().deterministic is not False,
    )
    pushdown, obstacles = plan(dataset)
    traps = [*order_traps(seen), *speed_traps(seen)]
    if workers > 1:
        traps += mapped_by_all(obstacles, workers)
    return Inspection(
        pipeline=tuple(step.kind for step in seen.steps),
        workers=workers,
        replicas=replicas,
        batch_size=seen.batch_size,
        batches=seen.batches,
        sharding=_sharding(seen, pushdown),
        cost=_cost(seen, pushdown),
        findings=worst_first({str(one): one for one in traps}.values()),
    )


def _sharding(seen: InspectedDataset, pushdown: Pushdown | None) -> str:
    if seen.replicas == 1:
        return "one replica takes every batch whole."
    size = "its part" if seen.batch_size is None else f"{seen.batch_size / seen.replicas:g}"
    if pushdown is not None:
        return (
            f"by data. Each of {seen.replicas} replicas takes {size} of the rows of every batch; "
            "a worker chooses its rows before it maps them."
        )
    return (
        f"by data. Every one of {seen.workers} worker(s) makes every batch, in the same order, "
        f"and each of {seen.replicas} replicas takes {size} of its rows."
    )


def _cost(seen: InspectedDataset, pushdown: Pushdown | None) -> str:
    if seen.workers == 1:
        return "every sample is read and mapped once in an epoch."
    if pushdown is not None:
        first = " -> ".join(step.kind for step in pushdown.read_by_all)
        return (
            f"{len(pushdown.maps)} of the maps are run once for a sample, by the worker that takes "
            f"it. Each of {seen.workers} workers runs {first} on all samples."
        )
    return (
        f"every sample is read and mapped {seen.workers} times in an epoch, once by each worker. "
        "phalanx.data.pipeline would have it done once."
    )


def _rows(spec: Any) -> int | None:
    first = next((s for s in keras.tree.flatten(spec) if hasattr(s, "shape")), None)
    rank = None if first is None else first.shape.rank
    return first.shape[0] if first is not None and rank else None
