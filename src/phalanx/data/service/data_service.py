"""A pipeline whose batches the servers of a `tf.data` service make.

The servers are given positions, not samples: what belongs at a position follows from the seed
alone, so it does not matter who makes it, in which order, or whether it is made twice. Positions
are handed out once each; a server that dies takes a few of them along, and those are made here.
See https://www.tensorflow.org/api_docs/python/tf/data/experimental/service.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec
from phalanx.data.batches import no_autograph
from phalanx.data.pipelines.indexed import IndexedPipeline
from phalanx.data.pipelines.local_rows import LocalBatch, Make
from phalanx.data.pipelines.options import PipelineOptions
from phalanx.data.pipelines.transforms import no_fusion
from phalanx.data.py_function import python_call
from phalanx.data.service.reorder_buffer import Element, Fetcher
from phalanx.data.sources.protocol import IndexedSource
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import DataError
from phalanx.keras_compat.dataset_graph import transformations

_log = logging.getLogger("phalanx")


def service_address(requested: bool | str, environment: Mapping[str, str]) -> str:
    """Where the dispatcher listens: as asked, or as the launcher says; "" where there is none."""
    if isinstance(requested, str):
        return requested.removeprefix("grpc://")
    spec = WorkerSpec.from_environment(environment)
    return spec.data_service if requested and spec is not None else ""


def maybe_use_service(
    source: IndexedSource, options: PipelineOptions, environment: Mapping[str, str]
) -> IndexedPipeline:
    """The pipeline as asked; one that reads on its own where there is no service."""
    address = service_address(options.service, environment)
    if options.service and not address:
        _log.info("no data service: start one with phalanx run --data-workers; reading here")
    here = replace(options, service=False)
    return ServicePipeline(source, here, address) if address else IndexedPipeline(source, here)


class ServicePipeline(IndexedPipeline):
    """The same batches in the same order as without a service."""

    def __init__(self, source: IndexedSource, options: PipelineOptions, address: str) -> None:
        """Prepare, here and for the servers.

        Args:
            source: the samples.
            options: what was asked, without the service.
            address: `host:port` of the dispatcher.
        """
        super().__init__(source, options)
        self._address = address
        # Servers read samples one by one, without Python, and remember none.
        remote = copy.copy(source)
        remote.gathers = source.gathers and not source.can_fail
        plain = replace(options, service=True, cache=None, cache_key=None)
        self._remote = IndexedPipeline(remote, plain)

    def prefetched(
        self, positions: tf.data.Dataset, topology: ReplicaTopology, make: Make
    ) -> tf.data.Dataset:
        """What `make` gives of each position; made by the servers, put in order here."""
        spec = self.made(positions, topology, make).element_spec
        specs = tf.nest.flatten(spec)
        if not all(isinstance(one, tf.TensorSpec) for one in specs):
            raise DataError(
                f"Asked to have batches of {spec} made by a data service; found others than dense "
                "tensors. Turn them into such in map=, or leave service out."
            )
        self._assert_no_python(topology, make)
        here = tf.function(
            no_autograph(lambda at: tf.nest.flatten(self.element(at, topology, make)))
        )

        def made_here(position: int) -> Element:
            return list(here(tf.constant(position, tf.int64)))

        fetcher = Fetcher(lambda start: self._served(start, topology, make), made_here)

        def arrays(position: int) -> list[Any]:
            return [value.numpy() for value in fetcher.fetch(position)]

        def fetched(position: tf.Tensor) -> Any:
            values = python_call(lambda at: arrays(int(at)), [position], [s.dtype for s in specs])
            values = [tf.ensure_shape(v, s.shape) for v, s in zip(values, specs, strict=True)]
            return tf.nest.pack_sequence_as(spec, values)

        return positions.map(no_autograph(fetched)).prefetch(
            self.options.prefetch or tf.data.AUTOTUNE
        )

    def _served(self, start: int, topology: ReplicaTopology, make: Make) -> Iterable[Element]:
        """Each position with what the servers make of it; no order is kept."""

        def numbered(rows: LocalBatch) -> tuple[Any, ...]:
            return (rows.position, *tf.nest.flatten(make(rows)))

        service = tf.data.experimental.service
        positions = tf.data.Dataset.range(start, tf.int64.max)
        made = self._remote.made(positions, topology, numbered, deterministic=False)
        elements = made.prefetch(tf.data.AUTOTUNE).with_options(no_fusion())
        distribute = service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{self._address}",
            compression=None,
        )
        served: Iterable[Element] = elements.apply(distribute)
        return served

    def _assert_no_python(self, topology: ReplicaTopology, make: Make) -> None:
        positions = tf.data.Dataset.range(1)
        made = positions.map(no_autograph(lambda at: self._remote.element(at, topology, make)))
        if any(step.python for step in transformations(made).walk()):
            raise DataError(
                f"Asked to have {self.source} read by a data service; found that it is read in "
                "Python, of which the servers have none. Give TFRecords with index=True, images or "
                "arrays, keep py_function out of map=, or leave service out."
            )
