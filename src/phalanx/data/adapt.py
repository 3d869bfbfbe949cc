"""Turn what `fit`, `evaluate` and `predict` take into global batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import GeneratorType
from typing import Any

import tensorflow as tf

from phalanx.data.array_batches import ArrayBatches
from phalanx.data.batches import BatchSource, read_over, with_free_batch_axis
from phalanx.data.dataset_batches import DatasetBatches
from phalanx.data.iterator_position import DataPosition
from phalanx.data.pipelines.registry import is_transformed, pipeline_of
from phalanx.data.prefetch_counter import Lookahead
from phalanx.data.shared_generator import GeneratorPasses
from phalanx.distributed.datasets import ShardedDataset
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import DataError
from phalanx.keras_compat.data_adapters import adapt, arrays_of, take_passes_from
from phalanx.keras_compat.tf_distribute import spec_of_one_replica


def make_batch_source(
    x: Any,
    y: Any = None,
    *,
    topology: ReplicaTopology,
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
        y: targets, where `x` does not contain them.
        topology: this process's replicas.
        seed: decides the order of shuffled arrays, the same on every worker; None for the order
            that Keras draws from the global seed.
        sample_weight: one weight a sample, where `x` does not contain them.
        batch_size: samples of a global batch, for arrays.
        steps: batches an epoch, where given.
        shuffle: True, False or "batch", for arrays and PyDatasets.
        class_weight: weight by class id.
        only: take the first so many batches, the same in every pass; None for all.

    Raises:
        DataError: the data holds no sample, or cannot be combined with an argument.
        ValueError: Keras's own, for data that Keras would refuse.
    """
    other_arguments = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
    if isinstance(x, tf.distribute.DistributedDataset):
        _reject_with("a distributed dataset", **other_arguments)
        distributed = DistributedBatches(x)
        return distributed if only is None else TakeFirst(distributed, only)
    if (known := pipeline_of(x)) is not None:
        _reject_with("what phalanx.data.pipeline gives", **other_arguments)
        batches = known.batches(topology)
        return batches if only is None else TakeFirst(batches, only)
    if topology.has_peers and is_transformed(x):
        raise DataError(
            "Asked to train on a dataset made by further steps from phalanx.data.pipeline's, which "
            "holds this worker's share alone. Give the steps to pipeline itself (map=, augment=, "
            "map_batches=), and fit what it returns."
        )
    options = {"steps": steps, "batch_size": batch_size, **other_arguments}
    if isinstance(x, GeneratorType):
        return _batches_of_generator(x, topology, only=only, shuffle=shuffle, **options)
    adapter = adapt(x, shuffle=_ignore_for_datasets(x, shuffle), **options)
    arrays = arrays_of(adapter)
    if arrays is None:
        return DatasetBatches(adapter, topology, only=only)
    if arrays.num_samples == 0:
        raise DataError("Asked to use arrays with 0 samples. Pass at least one sample.")
    if only is not None:
        samples = min(arrays.num_samples, only * arrays.batch_size)
        arrays = replace(arrays, num_samples=samples, shuffle=False)
    return ArrayBatches(arrays, topology, seed)


def _batches_of_generator(
    generator: GeneratorType[Any, Any, Any],
    topology: ReplicaTopology,
    *,
    only: int | None,
    **options: Any,
) -> DatasetBatches:
    passes = GeneratorPasses(generator)
    try:
        adapter = adapt(passes.peek(), **options)
    except BaseException:
        passes.close()  # what Keras refuses is left in the generator
        raise
    take_passes_from(adapter, passes)
    return DatasetBatches(adapter, topology, only=only, passes=passes)


def _ignore_for_datasets(x: Any, shuffle: bool | str) -> bool | str:
    """`shuffle=True` is fit's default and says nothing of a dataset; Keras would warn."""
    return False if isinstance(x, tf.data.Dataset) else shuffle


def _reject_with(what: str, **arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise DataError(
            f"Asked to use {', '.join(given)} next to {what}, whose elements already are (x, y) or "
            "(x, y, sample_weight). Put them into the dataset."
        )


class TakeFirst:
    """A pass over `source` that ends after some batches, and begins where the last one did.

    For sources that begin equal whenever they are opened at position 0.
    """

    endless = False
    has_state = False

    def __init__(self, source: BatchSource, batches: int) -> None:
        """Take the first `batches` of `source`, or all where it has fewer."""
        self._source = source
        known = source.num_batches
        self.num_batches: int | None = batches if known is None else min(batches, known)
        self.batch_spec = source.batch_spec
        self.may_be_empty = source.may_be_empty
        self.may_be_undivided = source.may_be_undivided
        self.counted = source.counted
        self.num_samples: int | None = None
        self.batch_size = source.batch_size
        self.full_batch_size: int | None = source.full_batch_size
        self.length_unknown = source.length_unknown
        self.fingerprint = source.fingerprint
        self.order = source.order
        self.seed = source.seed

    @property
    def ahead(self) -> Lookahead | None:
        """What the source has ready of the current pass; None where it does not count that."""
        found: Lookahead | None = getattr(self._source, "ahead", None)
        return found

    def open(self, position: int) -> Any:
        """A new pass."""
        del position
        return self._source.open(0)

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The pass from `position` on."""
        del state
        if position.taken is None:
            return None
        iterator = self._source.open(0)
        read_over(iterator, position.taken)
        return iterator

    def open_unread(self) -> None:
        """Nothing to do: all passes begin equal."""

    def on_epoch_begin(self) -> None:
        """Pass the word on."""
        self._source.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Pass the word on."""
        self._source.on_epoch_end()


class DistributedBatches:
    """A `tf.distribute.DistributedDataset`; elements are its own, per replica.

    What the global batch holds is known only to the replicas together, so the step adds
    up their counts: one small collective more than for data that Phalanx shares out.
    """

    endless = False
    counted = False
    may_be_undivided = False
    has_state = False
    num_samples: int | None = None
    batch_size: int | None = None
    full_batch_size: int | None = None
    fingerprint: int | None = None
    order: str | None = None
    seed: int | None = None

    def __init__(self, dataset: tf.distribute.DistributedDataset) -> None:
        self._dataset = dataset
        self.ahead: Lookahead | None = None
        self.num_batches: int | None = _cardinality(dataset)
        self.batch_spec = with_free_batch_axis(spec_of_one_replica(dataset.element_spec))
        self.may_be_empty = True
        # TensorFlow's own iterators ask the other workers on their own.
        self.length_unknown = isinstance(dataset, ShardedDataset) and self.num_batches is None

    def open(self, position: int) -> Any:
        """A new pass over the dataset."""
        del position
        return self._open()

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The pass from `position` on, read again up to there."""
        del state
        for _ in range(position.passes - (position.taken is not None) + position.unread):
            self.open_unread()
        if position.taken is None:
            return None
        iterator = self._open(left_out=position.taken)
        read_over(iterator, position.taken)
        return iterator

    def _open(self, *, left_out: int = 0) -> Any:
        if not self.length_unknown:
            return iter(self._dataset)
        self.ahead = Lookahead(left_out)
        return iter(self.ahead.over(self._dataset.dataset))

    def open_unread(self) -> None:
        """Open the dataset and read nothing."""
        iter(self._dataset)

    def on_epoch_begin(self) -> None:
        """Nothing to do."""

    def on_epoch_end(self) -> None:
        """Nothing to do."""


def _cardinality(dataset: tf.distribute.DistributedDataset) -> int | None:
    cardinality = getattr(dataset, "cardinality", None)
    value = cardinality() if callable(cardinality) else cardinality
    return int(value) if value is not None and int(value) >= 0 else None
