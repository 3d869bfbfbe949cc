"""Turn what `fit`, `evaluate` and `predict` take into global batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from phalanx.data.array_batches import ArrayBatches
from phalanx.data.batches import BatchSource
from phalanx.data.dataset_batches import DatasetBatches
from phalanx.data.distributed import DistributedBatches
from phalanx.data.first_batches import FirstBatches
from phalanx.data.pipelines.registry import is_derived, pipeline_of
from phalanx.data.place import ReplicaPlace
from phalanx.errors import DataError
from phalanx.seam.adapters import adapt, arrays_of


def global_batches(
    x: Any,
    y: Any = None,
    *,
    place: ReplicaPlace,
    seed: int | None,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
    only: int | None = None,
) -> BatchSource:
    """The global batches of whatever Keras takes; `batch_size` is the global batch.

    Args:
        x: arrays, a `tf.data.Dataset`, a distributed dataset, a generator, a PyDataset ...
        y: targets, where `x` does not bring them.
        place: this process's replicas.
        seed: decides the order of shuffled arrays, the same on every worker; None for the order
            that Keras draws from the global seed.
        sample_weight: one weight a sample, where `x` does not bring them.
        batch_size: samples of a global batch, for arrays.
        steps: batches an epoch, where given.
        shuffle: True, False or "batch", for arrays and PyDatasets.
        class_weight: weight by class id.
        only: take the first so many batches, the same in every pass; None for all.

    Raises:
        DataError: the data holds no sample, or cannot be combined with an argument.
        ValueError: Keras's own, for data that Keras would refuse.
    """
    beside = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
    if isinstance(x, tf.distribute.DistributedDataset):
        _refuse_beside("a distributed dataset", **beside)
        distributed = DistributedBatches(x)
        return distributed if only is None else FirstBatches(distributed, only)
    if (known := pipeline_of(x)) is not None:
        _refuse_beside("what phalanx.data.pipeline gives", **beside)
        batches = known.batches(place)
        return batches if only is None else FirstBatches(batches, only)
    if place.has_peers and is_derived(x):
        raise DataError(
            "Asked to train on a dataset made by further steps from phalanx.data.pipeline's, which "
            "holds this worker's share alone. Give the steps to pipeline itself (map=, augment=, "
            "map_batches=), and fit what it returns."
        )
    adapter = adapt(
        x,
        y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        steps=steps,
        shuffle=_ignore_for_datasets(x, shuffle),
        class_weight=class_weight,
    )
    arrays = arrays_of(adapter)
    if arrays is None:
        return DatasetBatches(adapter, place, only=only)
    if arrays.num_samples == 0:
        raise DataError("Asked to use arrays with 0 samples. Pass at least one sample.")
    if only is not None:
        samples = min(arrays.num_samples, only * arrays.batch_size)
        arrays = replace(arrays, num_samples=samples, shuffle=False)
    return ArrayBatches(arrays, place, seed)


def _ignore_for_datasets(x: Any, shuffle: bool | str) -> bool | str:
    """`shuffle=True` is fit's default and says nothing of a dataset; Keras would warn."""
    return False if isinstance(x, tf.data.Dataset) else shuffle


def _refuse_beside(what: str, **arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise DataError(
            f"Asked to use {', '.join(given)} beside {what}, whose elements already are (x, y) or "
            "(x, y, sample_weight). Put them into the dataset."
        )
