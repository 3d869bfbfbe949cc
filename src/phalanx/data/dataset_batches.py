"""Whatever Keras's adapters give as a `tf.data.Dataset`, as global batches."""

from __future__ import annotations

import functools
import logging
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.data.batches import (
    no_autograph,
    read_over,
    with_free_batch_axis,
    with_none,
)
from phalanx.data.inspection.inspect import inspect
from phalanx.data.iterator_position import DataPosition
from phalanx.data.iterator_state import read_iterator, seeds_in, write_iterator
from phalanx.data.prefetch_counter import Lookahead
from phalanx.data.pushdown import plan, shares
from phalanx.data.shared_generator import GeneratorPasses
from phalanx.data.shuffles import Shuffles
from phalanx.data.undivided import (
    divide,
    is_first_pass,
    is_undivided,
    print_if_undivided,
    rows_of_batches,
)
from phalanx.distributed.datasets import element_of
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import DataError
from phalanx.keras_compat.data_adapters import draws_order, reads_ahead
from phalanx.keras_compat.dataset_graph import batch_size_of, calls_python, transformations


class DatasetBatches:
    """Any other source, as Keras's adapter gives it: a `tf.data.Dataset` of global batches.

    Every worker keeps its rows, which is right for every dataset whose order is the same on all
    workers: the launcher seeds them in the same way, and fit compares the shuffles' seeds. Where
    `phalanx.data.pushdown` can, a worker maps its own rows only; else it runs the whole pipeline.
    """

    endless = False
    counted = True
    num_samples: int | None = None
    order: str | None = None
    seed: int | None = None

    def __init__(
        self,
        adapter: Any,
        topology: ReplicaTopology,
        *,
        only: int | None = None,
        passes: GeneratorPasses | None = None,
    ) -> None:
        """Share out what `adapter` gives.

        Args:
            adapter: gives the dataset of global batches.
            topology: this process's replicas.
            only: take the first so many batches, which are kept; None for all.
            passes: from which `adapter` takes the elements of a Python generator.
        """
        self._adapter = adapter
        self._passes = passes
        self.first_batches: list[Any] | None = None if passes is None else passes.first
        """The first batches of a Python generator, which are known before training starts."""
        self._topology = topology
        self._dataset = with_none(adapter.get_tf_dataset())
        self.fingerprint: int | None = order_checksum(self._dataset, topology)
        self.num_batches: int | None = adapter.num_batches
        if only is not None:
            endless = self._dataset.cardinality() == tf.data.INFINITE_CARDINALITY
            most = only if endless else self.num_batches
            self._dataset = self._dataset.take(only).cache()
            self.num_batches = None if most is None else min(only, most)
        self.batch_spec = with_free_batch_axis(self._dataset.element_spec)
        self.batch_size: int | None = _static_batch_size(self._dataset.element_spec)
        self.full_batch_size = self.batch_size or batch_size_of(self._dataset)
        self.may_be_empty = self.batch_size is None or self.batch_size < topology.total
        self._rows = rows_of_batches(self._dataset) if self.batch_size is None else "equal"
        self.may_be_undivided = topology.total > 1 and self._rows != "equal"
        unknown = self._dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
        self.length_unknown = self.num_batches is None and bool(unknown)
        is_counted = self.length_unknown and topology.has_peers  # in Python: see Lookahead
        self.has_state = only is None and not is_counted and not calls_python(self._dataset)
        self.random: tuple[int, ...] | None = None
        """The state of Python's `random` as the pass was opened, where its order is drawn there."""
        self._draws_order = draws_order(adapter)
        self.shuffles = Shuffles(self._dataset)
        self._reads_ahead = reads_ahead(adapter)
        self._drawn_from: tuple[int, ...] | None = None
        self._is_started = False
        self.ahead: Lookahead | None = None
        if passes is not None and not passes.is_alone and topology.has_peers and topology.is_chief:
            _log.warning(
                "Two datasets of one call read the same Python generator, by turns that depend on "
                "the speed of each worker, so workers use rows of different batches. Pass a "
                "generator of its own to each, such as to validation_data."
            )

    @functools.cached_property
    def _local_rows(self) -> tf.data.Dataset | None:
        """This worker's rows where they are chosen before they are mapped."""
        pushdown = plan(self._dataset)[0] if self._topology.has_peers else None
        return None if pushdown is None else pushdown.build(self._topology)

    def open(self, position: int) -> Any:
        """A new pass over the dataset; `position` is known to the dataset alone."""
        del position
        return self._open()

    def reopen(self, position: DataPosition, state: Mapping[str, Any] | None) -> Any:
        """The pass from `position` on.

        Passes before it are opened, not read: what is random draws its seed when it is opened. When
        TensorFlow restores an iterator it opens it once more, and only a part whose state
        is in there takes that back: one that has given all it had is not. So one pass less is
        opened before, and where there is none, the data is read again. Shuffles are set to the
        seeds that they had drawn, however often they were opened.
        """
        state = state if self.has_state else None
        restores = position.taken is not None and state is not None
        before = position.passes - (position.taken is not None)
        for _ in range(before):
            self._adapter.on_epoch_begin()
            self._adapter.on_epoch_end()
        opened = before + position.unread
        for _ in range(opened - (restores and opened > 0)):
            self.open_unread()
        if position.taken is None:
            self._draw_from(position.seeds_drawn)
            return None
        if position.random is not None and self._draws_order:
            return self._reopen_drawn(position.random, position.taken)
        self._draw_from(position.seeds_before)
        iterator = self._continued(position.taken, state, is_first=opened == 0)
        self._draw_from(position.seeds_drawn)
        return iterator

    def _continued(self, taken: int, state: Mapping[str, Any] | None, *, is_first: bool) -> Any:
        """A pass behind its first batches, from `state` if that has all that is random."""
        if state is None:
            return self._open(left_out=taken)
        iterator = self._open()
        if is_first and seeds_in(state) < seeds_in(read_iterator(iterator) or {}):
            read_over(iterator, taken)
            return iterator
        write_iterator(iterator, state)
        return iterator

    def _draw_from(self, seeds: Sequence[int | None] | None) -> None:
        """Let the shuffles draw next what they draw after so many seeds, where that is known."""
        if seeds is not None:
            self.shuffles.set_seeds_drawn(seeds)

    def _reopen_drawn(self, words: tuple[int, ...], taken: int) -> Any:
        """Draw the same order again, and read what was taken now: it is drawn as it is read."""
        version, _, _ = random.getstate()
        random.setstate((version, tuple(words), None))
        self.on_epoch_begin()
        self._is_started = True
        return self._open(left_out=taken)

    def _open(self, *, left_out: int = 0) -> Any:
        """A pass behind its first batches, which are read, so that shuffles draw."""
        iterator = self._iterator(left_out)
        read_over(iterator, left_out)
        return iterator

    def _iterator(self, left_out: int) -> Any:
        cut_batch: Callable[..., Any]
        if self.may_be_undivided:
            batches = self._dataset.enumerate()
            is_first = is_first_pass(self._dataset.element_spec)
            cut_batch = functools.partial(self._divide_if_equal, is_first)
        elif self._local_rows is None:
            batches, cut_batch = self._dataset, self._divide
        else:
            batches, cut_batch = self._local_rows, shares(self._topology, self.batch_size)
        self.random = self._drawn_from
        if self._passes is not None:
            self._passes.begin(skipped=left_out)
        if self._reads_ahead:
            return iter(batches.map(no_autograph(cut_batch)))
        shared = batches.map(no_autograph(cut_batch), num_parallel_calls=tf.data.AUTOTUNE)
        if self.length_unknown and self._topology.has_peers:
            self.ahead = Lookahead(left_out)
            return iter(self.ahead.over(shared))
        return iter(shared.prefetch(tf.data.AUTOTUNE))

    def open_unread(self) -> None:
        """Open the dataset and read nothing."""
        iter(self._dataset)
        self.shuffles.undo_drawn_for_caches()

    def on_epoch_begin(self) -> None:
        """Pass the word on: PyDatasets start their workers here, which draw an order."""
        if self._is_started:  # by `reopen`
            self._is_started = False
            return
        if self._draws_order:
            self._drawn_from = random.getstate()[1]
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Pass the word on: PyDatasets shuffle here."""
        self._adapter.on_epoch_end()

    def took(self, batches: int) -> None:
        """Note that steps took the first `batches` of the pass; the others stay in a generator."""
        if self._passes is not None:
            self._passes.took(batches)

    def close(self) -> None:
        """End the pass: nothing more is read from a generator."""
        if self._passes is not None:
            self._passes.close()

    def _divide(self, *batch: Any) -> Any:
        data = element_of(batch, self._dataset.element_spec)
        return divide(data, self._topology, may_be_empty=self.may_be_empty, size=self.batch_size)

    def _divide_if_equal(self, is_first: bool, place: tf.Tensor, batch: Any) -> Any:
        """The same where rows can be unlike; `place` is that of the batch in its pass."""
        undivided = is_undivided(batch, self._topology.total, self._rows)
        if is_first and self._topology.is_chief:
            print_if_undivided(undivided, place)
        return divide(batch, self._topology, undivided=undivided)


def _static_batch_size(spec: Any) -> int | None:
    """The rows of every tensor, where they are known and equal."""
    shapes = [getattr(one, "shape", None) for one in keras.tree.flatten(spec)]  # None has none
    sizes = {shape[0] for shape in shapes if shape is not None and shape.rank}
    return sizes.pop() if len(sizes) == 1 else None


_log = logging.getLogger("phalanx")


def order_checksum(dataset: Any, topology: ReplicaTopology) -> int | None:
    """A number that differs between workers whose shuffles have different seeds.

    A shuffle without a seed takes one from TensorFlow's global seed and from how many were taken
    before: a script that draws random numbers on one worker alone moves that worker's on. What
    else is known to be wrong with several workers is said, by the chief.

    Raises:
        DataError: a shuffle has no seed at all, and workers would each draw their own.
    """
    if not topology.has_peers:
        return None
    steps = list(transformations(dataset).walk())
    seeds = [step.seeds for step in steps if step.seeds is not None]
    if (0, 0) in seeds:
        raise DataError(
            f"Asked to share out a shuffled dataset between {topology.workers} workers; found a "
            "shuffle without a seed, whose order would differ on each. Call "
            "keras.utils.set_random_seed before it (phalanx run does), or give shuffle(seed=...)."
        )
    if topology.is_chief:
        for finding in inspect(dataset, workers=topology.workers, replicas=topology.total).findings:
            if finding.weight == "wrong":
                _log.warning("%s %s %s", finding.what, finding.why, finding.remedy)
    return zlib.crc32(repr(seeds).encode()) if seeds else None
