"""Which dataset came from which pipeline, so that `fit` finds the whole behind a share.

What `phalanx.data.pipeline` returns holds this worker's rows alone. `fit` asks here for the
pipeline itself. A dataset that the user made from it by further steps (`.map`, `.prefetch`) is
another object, but carries the mark on: TensorFlow merges the options of all inputs.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import tensorflow as tf

from phalanx.data.batches import BatchSource
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.distributed.topology import ReplicaTopology

MARK = "phalanx.data.pipeline"


class Pipeline(Protocol):
    """A source with all that was asked of it.

    Attributes:
        options: what was asked.
    """

    @property
    def options(self) -> PipelineOptions:
        """What was asked."""

    def batches(self, topology: ReplicaTopology) -> BatchSource:
        """The global batches for `fit`, `evaluate` and `predict`."""

    def dataset(self, topology: ReplicaTopology) -> tf.data.Dataset:
        """This worker's rows of each global batch, one pass after the other."""


_pipelines: weakref.WeakKeyDictionary[tf.data.Dataset, Pipeline] = weakref.WeakKeyDictionary()


def register(pipeline: Pipeline, topology: ReplicaTopology) -> tf.data.Dataset:
    """The pipeline's dataset for this worker, which `pipeline_of` knows again."""
    options = tf.data.Options()
    options.dataset_name = MARK
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = pipeline.dataset(topology).with_options(options)
    _pipelines[dataset] = pipeline
    return dataset


def pipeline_of(dataset: Any) -> Pipeline | None:
    """The pipeline that gave this very dataset."""
    return _pipelines.get(dataset) if isinstance(dataset, tf.data.Dataset) else None


def is_transformed(dataset: Any) -> bool:
    """Whether a dataset was made from a pipeline's by further steps."""
    if not isinstance(dataset, tf.data.Dataset) or dataset in _pipelines:
        return False
    return bool(dataset.options().dataset_name == MARK)
