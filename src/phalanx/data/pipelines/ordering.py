"""Which order a pipeline asks for."""

from __future__ import annotations

import numpy as np

from phalanx.data.order import Order, PlainOrder
from phalanx.data.order_of_groups import BucketedOrder, MixedOrder
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.padding import PaddedLength
from phalanx.data.sources.mixed import MixedSource
from phalanx.data.sources.protocol import IndexedSource
from phalanx.errors import DataError, OptionError


def order_of(source: IndexedSource, options: PipelineOptions, padded: PaddedLength | None) -> Order:
    """The order of a pipeline's samples.

    Raises:
        OptionError: two of the wishes cannot be met at once.
        DataError: the labels do not fit the samples.
    """
    size, dropped = options.global_batch_size, options.drop_remainder
    buckets = padded is not None and options.padding.buckets is not None
    mixed = source if isinstance(source, MixedSource) else None
    wishes = [
        name
        for name, asked in (
            ("mix(...)", mixed is not None),
            ("balance=", options.balance is not None),
            ("buckets=", buckets),
        )
        if asked
    ]
    if len(wishes) > 1:
        raise OptionError(
            f"pipeline takes one of mix(...), balance= and buckets=; found {' and '.join(wishes)}. "
            "Each decides alone which samples come together."
        )
    if mixed is not None or options.balance is not None:
        if not options.shuffle:
            raise OptionError(
                f"pipeline takes {wishes[0]} with shuffle=True alone; found shuffle=False. What is "
                "drawn from each group is drawn by chance."
            )
        groups = mixed.groups() if mixed is not None else _classes(source, options)
        weights = mixed.weights if mixed is not None else [1.0] * len(groups)
        return MixedOrder(groups, weights, size, drop_remainder=dropped)
    if buckets and padded is not None:
        shuffle = bool(options.shuffle)
        return BucketedOrder(padded.buckets(), size, shuffle=shuffle, drop_remainder=dropped)
    return PlainOrder(source.num_samples, size, options.shuffle, drop_remainder=dropped)


def _classes(source: IndexedSource, options: PipelineOptions) -> list[np.ndarray]:
    labels = source.labels if options.balance is True else options.balance
    if labels is None:
        raise DataError(
            "Asked for balance=True; found a source that does not know its classes. Give one "
            "class for each sample: balance=labels."
        )
    found = np.asarray(labels)
    if found.shape != (source.num_samples,):
        raise DataError(
            f"Asked for balance= over {source.num_samples} samples; found labels of shape "
            f"{found.shape}. Give one class for each sample."
        )
    return [np.flatnonzero(found == one) for one in np.unique(found)]
