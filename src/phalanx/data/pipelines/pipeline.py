"""`phalanx.data.pipeline` and `phalanx.data.mix`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from phalanx.data.pipelines.indexed import IndexedPipeline
from phalanx.data.pipelines.options import OnError, PipelineOptions
from phalanx.data.pipelines.padding import Padding
from phalanx.data.pipelines.registry import Pipeline, pipeline_of, register
from phalanx.data.service.data_service import maybe_use_service
from phalanx.data.sources.mixture import MixedSource, mixed
from phalanx.data.sources.protocol import StreamSource
from phalanx.data.sources.resolve_source import Source, resolve_source
from phalanx.data.streams.stream_pipeline import StreamPipeline
from phalanx.distributed.topology import topology_of
from phalanx.errors import DataError


def pipeline(
    source: Any,
    global_batch_size: int,
    *,
    map: Callable[..., Any] | None = None,
    augment: Callable[..., Any] | None = None,
    map_batches: Callable[..., Any] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    cache: str | None = None,
    cache_key: str | None = None,
    drop_remainder: bool = False,
    steps_per_epoch: int | None = None,
    padding: Padding | None = None,
    balance: Any = None,
    on_error: OnError = "raise",
    start: tuple[int, int] = (0, 0),
    parallel: int | None = None,
    prefetch: int | None = None,
    shuffle_buffer: int = 10_000,
    deterministic: bool = True,
    service: bool | str = False,
) -> tf.data.Dataset:
    """Batches of `source` in one global order, of which each worker reads its share.

    Batch b of epoch e holds the same samples on one worker or on eight. Give the dataset to
    `fit`, `evaluate` or `predict`, which know its source, or iterate over it in a loop
    of your own: then it holds this worker's rows, and each iteration is the next epoch.

    A sample goes through: read, `map`, cache, `augment`, batch, `map_batches`.

    Args:
        source: arrays (one, or a tuple or dict), a directory of images by class, names of files
            (.csv, .parquet, .tfrecord, .array_record, IDX), an object with `__len__` and
            `__getitem__`, `phalanx.data.mix(...)`, or what `phalanx.data.images` and similar give.
        global_batch_size: samples of a batch, over all workers.
        map: `map(*sample)` gives the sample to train on; the same each time.
        augment: `augment(*sample, seed=seed)` with a seed of shape [2] for `tf.random.stateless_*`
            and `tf.image.stateless_random_*`, which follows from (seed, epoch, place).
        map_batches: the same as `map` for a whole batch, or this worker's part of one.
        shuffle: whether each epoch has an order of its own.
        seed: decides the order and all augmentation; the same on every worker.
        cache: "memory" or "disk:PATH", to read and map each sample once. Order and augmentation
            stay free. On disk, samples of another source or `map` have another key: Phalanx
            computes it from files, arrays and code.
        cache_key: a name for the samples in place of that key, where it cannot be computed or
            takes too long. Change it whenever the source or `map` changes.
        drop_remainder: whether to leave out the last batch of an epoch if it is not full.
        steps_per_epoch: batches in an epoch; one pass over the source where None.
        padding: how sequences of different lengths come into a batch.
        balance: True, or a class for each sample, to take as many from every class.
        on_error: "raise" to end with the first sample that cannot be read; "skip" to let the next
            one stand in, and to warn how many were left out.
        start: (epoch, step) at which a loop of your own begins.
        parallel: batches made at the same time; as many as pay where None.
        prefetch: batches made ahead; as many as pay where None.
        shuffle_buffer: samples that are shuffled at a time, for streams.
        deterministic: whether a stream's order is the same each time.
        service: whether `phalanx run --data-workers` make the batches.

    Returns:
        This worker's part of each batch.

    Raises:
        ConfigurationError: an option is none of what it may be, or two contradict each other, or
            the samples of a cache on disk have no key.
        DataError: the source is none, has no sample, or fewer than there are workers.
    """
    options = PipelineOptions(
        global_batch_size=global_batch_size,
        map=map,
        augment=augment,
        map_batches=map_batches,
        shuffle=shuffle,
        seed=seed,
        cache=cache,
        cache_key=cache_key,
        drop_remainder=drop_remainder,
        steps_per_epoch=steps_per_epoch,
        padding=padding,
        balance=balance,
        on_error=on_error,
        start=start,
        parallel=parallel,
        prefetch=prefetch,
        shuffle_buffer=shuffle_buffer,
        deterministic=deterministic,
        service=service,
    )
    made = _pipeline(resolve_source(source), options)
    return register(made, topology_of(tf.distribute.get_strategy()))


def mix(sources: Sequence[Any], weights: Sequence[float]) -> MixedSource:
    """Several sources as one: of every epoch each has its share, mixed at random.

    An epoch is as long as all sources together, or `steps_per_epoch`. Each source is walked in
    whole passes of its own, so that none of its samples comes twice before all have come once.

    Args:
        sources: what `pipeline` takes as a source, all of equal samples.
        weights: the share of each, up to a factor; met exactly, to one sample an epoch.

    Raises:
        ConfigurationError: the weights do not fit, or a source is a stream.
        DataError: samples differ in structure or dtype.
    """
    return mixed([resolve_source(one) for one in sources], weights)


def skipped(dataset: tf.data.Dataset) -> dict[int, str]:
    """The samples that `on_error="skip"` has left out so far on this worker, and why.

    Args:
        dataset: what `pipeline` gave.

    Raises:
        DataError: it is something else.
    """
    found = pipeline_of(dataset)
    if not isinstance(found, IndexedPipeline):
        raise DataError(
            f"Asked which samples were left out of a {type(dataset).__name__}; found none that "
            "phalanx.data.pipeline gave from a source of numbered samples. Pass its dataset itself."
        )
    return dict(found.skipped)


def _pipeline(source: Source, options: PipelineOptions) -> Pipeline:
    if isinstance(source, StreamSource):
        return StreamPipeline(source, options)
    return maybe_use_service(source, options, os.environ)
