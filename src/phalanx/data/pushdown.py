"""This worker's rows of a `tf.data.Dataset`, chosen before they are mapped.

A dataset of samples is rewritten to the form `base.map(f).map(g)`: what stands between maps and
depends on the order of samples alone (shuffle, repeat, take, zip and so on) moves below them, with
its seeds and its state. The rows are then chosen from windows of the base, one for each global
batch:

    base.window(n) -> this worker's rows of each window -> map(f) -> map(g) -> batch(own rows)

The order is that of the dataset, and so are the batches. This is the predicate pushdown of
databases. It applies to maps of samples whose function has no state, and to maps of batches that
treat each row independently. Where a step cannot move, the rows are chosen above it, and
every worker runs the step and all below it on all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from phalanx.data.batches import no_autograph, slice_rows, static_share
from phalanx.distributed.datasets import element_of
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.keras_compat.dataset_graph import Transformation, element_bytes, transformations
from phalanx.keras_compat.dataset_rebuild import (
    MOST_BYTES,
    batch_like,
    cached_rebuild,
    function_of,
    function_of_rows,
    map_like,
    rebuild,
    zip_parts,
)
from phalanx.keras_compat.rowwise_functions import is_rowwise

MAPS = ("Map", "ParallelMap")
BATCHES = ("Batch", "ParallelBatch", "PaddedBatch")
_ORDER = ("AssertCardinality", "Repeat", "Shard", "Shuffle", "Skip", "Take")
OF_BATCHES = (*_ORDER, "Cache", "Prefetch", "Options")

Function = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A step above which the rows have to be chosen.

    Attributes:
        step: the step.
        reason: "random", "python", "state", "filter", "cache-order", "cache-file", "cache-moves",
            "inner-map", "padding", "batch-map", "memory", "order", "no-batch" or "other".
        detail: what the reason is about, for people.
    """

    step: Transformation
    reason: str
    detail: str = ""


@dataclass(frozen=True, eq=False)
class _Base:
    """A step over its own inputs, or over `inputs` in place of them."""

    step: Transformation
    inputs: tuple[_Base, ...] | None = None

    @property
    def is_original(self) -> bool:
        return self.inputs is None

    def build(self) -> Any:
        if self.inputs is None:
            return self.step.dataset
        datasets = [one.build() for one in self.inputs]
        is_new_pair = (
            self.step.inputs[0].kind != "Shuffle" and self.inputs[0].step.kind == "Shuffle"
        )
        if self.step.kind == "Repeat" and is_new_pair:
            # TensorFlow would fuse the two, which shuffles in another order.
            datasets = [datasets[0].prefetch(1)]
        return rebuild(self.step, datasets)

    def originals(self) -> Iterator[Transformation]:
        """The steps that stay as they are, with all below them."""
        if self.inputs is None:
            yield self.step
        for one in self.inputs or ():
            yield from one.originals()


@dataclass(frozen=True, eq=False)
class _Link:
    """A step that is applied to the chosen rows: a map, a prefetch or a cache.

    Attributes:
        step: the step.
        parts: of a zip: for each of its inputs the maps that are applied to it.
    """

    step: Transformation
    parts: tuple[tuple[_Link, ...], ...] | None = None

    def maps(self) -> list[Transformation]:
        """The maps in here."""
        if self.parts is None:
            return [self.step] if self.step.kind in MAPS else []
        return [step for part in self.parts for link in part for step in link.maps()]

    def function(self) -> Function:
        """What it does to one element."""
        if self.parts is None:
            return function_of(self.step) if self.step.kind in MAPS else lambda element: element
        order = zip_parts(self.step)
        functions = [_composed(part) for part in self.parts]

        def each(element: Any) -> Any:
            return keras.tree.map_structure_up_to(
                order, lambda number, part: functions[number](part), order, element
            )

        return each


def _is_nested(structure: Any) -> bool:
    return bool(tf.nest.is_nested(structure))


def _composed(links: Sequence[_Link]) -> Function:
    functions = [link.function() for link in links]

    def call(element: Any) -> Any:
        for function in functions:
            element = function(element)
        return element

    return call


@dataclass(frozen=True, eq=False)
class _Form:
    """A dataset of samples as a base and what is applied to each of its elements."""

    base: _Base
    links: tuple[_Link, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Pushdown:
    """How the rows of a dataset are chosen.

    Attributes:
        batch: the step that makes the global batches.
        form: its samples.
        above: the steps on batches, from the batch step up.
        options: of the dataset.
    """

    batch: Transformation
    form: _Form
    above: tuple[Transformation, ...]
    options: tf.data.Options

    @property
    def maps(self) -> tuple[Transformation, ...]:
        """The maps that a worker runs on its own rows only."""
        below = [step for link in self.form.links for step in link.maps()]
        return (*below, *(step for step in self.above if step.kind in MAPS))

    @property
    def read_by_all(self) -> tuple[Transformation, ...]:
        """The steps that every worker runs on all samples."""
        seen: dict[int, Transformation] = {}
        for original in self.form.base.originals():
            seen |= {id(step): step for step in original.walk()}
        return tuple(seen.values())

    def build(self, topology: ReplicaTopology) -> tf.data.Dataset:
        """Elements `(total, data)`: samples of the global batch (int32), and this worker's rows.

        A worker without rows gets the first row of the batch as a stand-in.
        """
        size = self.batch.batch_size
        assert size is not None
        memo = (topology, size, self.batch.drop_remainder)
        window = self.form.base.build().window(size, drop_remainder=self.batch.drop_remainder)
        dataset = window.flat_map(no_autograph(_chooser(topology, window.element_spec)))
        for link in self.form.links:
            dataset = _applied(link, dataset, memo)
        dataset = batch_like(self.batch, dataset, max(local_rows(topology, size)[1], 1))
        dataset = dataset.map(no_autograph(lambda totals, data: (totals[0], data)))
        for step in self.above:
            dataset = _applied(_Link(step), dataset, memo, of_rows=True)
        return dataset.with_options(self.options)


def _applied(link: _Link, dataset: Any, memo: tuple[Any, ...], *, of_rows: bool = False) -> Any:
    """A link over `(total, element)`, where the element may be some `of_rows` of a batch."""
    if link.parts is not None or link.step.kind in MAPS:
        function = function_of_rows(link.step) if of_rows else link.function()
        of_parts = [step for step in link.maps() if step.parallel]
        return map_like(
            next(iter(of_parts), link.step),
            dataset,
            no_autograph(lambda total, element: (total, function(element))),
        )
    if link.step.kind == "Cache":
        return cached_rebuild(link.step, dataset, memo)
    return dataset if link.step.kind == "Options" else rebuild(link.step, [dataset])


def local_rows(topology: ReplicaTopology, total: Any) -> tuple[Any, Any]:
    """Start and count of the rows of all replicas of this process, of a batch of `total` rows."""
    start, _ = rows_of(topology.first, topology.total, total)
    last, count = rows_of(topology.first + topology.local - 1, topology.total, total)
    return start, last + count - start


def _chooser(topology: ReplicaTopology, spec: Any) -> Callable[..., tf.data.Dataset]:
    """Turns a window of samples into `(total, sample)` of this worker's rows.

    Args:
        topology: this process's replicas.
        spec: of the windows.
    """

    def choose(*window: Any) -> tf.data.Dataset:
        parts = element_of(window, spec)
        total = tf.cast(tf.nest.flatten(parts)[0].cardinality(), tf.int32)
        start, count = local_rows(topology, total)
        start, count = tf.where(count > 0, start, 0), tf.maximum(count, 1)
        rows = tf.data.Dataset.zip(parts) if _is_nested(parts) else parts
        rows = rows.skip(tf.cast(start, tf.int64)).take(tf.cast(count, tf.int64))
        return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(total).repeat(), rows))

    return choose


def shares(topology: ReplicaTopology, size: int | None) -> Callable[[Any, Any], Any]:
    """Turns `(total, data)` into what `phalanx.data.batches` describes.

    Args:
        topology: this process's replicas.
        size: rows of every global batch, where they are known and equal.
    """

    def cut(total: Any, data: Any) -> Any:
        first, _ = local_rows(topology, total)
        parts = []
        for replica in range(topology.first, topology.first + topology.local):
            start, count = rows_of(replica, topology.total, total)
            begin = tf.where(count > 0, start - first, 0)
            static = static_share(size, replica, topology.total)
            parts.append((count, slice_rows(data, begin, tf.maximum(count, 1), static)))
        return total, tuple(parts)

    return cut


def plan(dataset: Any) -> tuple[Pushdown | None, tuple[Obstacle, ...]]:
    """How the rows of `dataset` can be chosen before they are mapped.

    Returns:
        None where nothing is gained; and the steps that are in the way of a map.
    """
    last = transformations(dataset)
    above: list[Transformation] = []
    step = last
    while step.kind not in BATCHES:
        if not (step.kind in OF_BATCHES or (step.kind in MAPS and is_by_row(step))):
            return None, _on_batches(step)
        above.append(step)
        (step,) = step.inputs
    found = _FormReader()
    form = found.form(step.inputs[0])
    pushdown = Pushdown(
        batch=step,
        form=form,
        above=tuple(reversed(above)),
        options=dataset.options(),
    )
    if not any(link.maps() for link in form.links):
        return None, found.in_the_way(pushdown)
    refused = _refused(pushdown, last, dataset.options())
    return (None, refused) if refused else (pushdown, found.in_the_way(pushdown))


def is_by_row(step: Transformation) -> bool:
    """Whether a map treats each row of a batch on its own."""
    return not step.state and is_rowwise(step)


def _on_batches(step: Transformation) -> tuple[Obstacle, ...]:
    """Why the rows of the batches at `step` are chosen from what it gives."""
    if not any(_maps(one) for one in step.walk()):
        return ()
    reason, detail = _reason(step)
    if step.kind in MAPS and not step.state:
        reason = "batch-map"
    if not any(one.kind in BATCHES for one in step.walk()):
        reason = "no-batch"
    return (Obstacle(step=step, reason=reason, detail=detail),)


def _reason(step: Transformation) -> tuple[str, str]:
    """Why a step cannot move, and what that is about."""
    if step.kind in ("Filter", "TakeWhile"):
        return "filter", ""
    if step.maps_inside:
        return "inner-map", ""
    if step.kind in MAPS and step.state:
        kind = "random" if step.random else "python" if step.python else "state"
        return kind, ", ".join(step.state)
    return "other", ""


def _refused(
    pushdown: Pushdown, last: Transformation, options: tf.data.Options
) -> tuple[Obstacle, ...]:
    """What forbids it altogether."""
    batch = pushdown.batch
    if batch.batch_size is None:
        return (Obstacle(step=batch, reason="other"),)
    if not batch.fixed_lengths or _is_sparse_of_any_length(batch.inputs[0]):
        return (Obstacle(step=batch, reason="padding"),)
    for step in last.walk():
        disordered = step.deterministic == "false" or options.deterministic is False
        if step.parallel and step.deterministic != "true" and disordered:
            return (Obstacle(step=step, reason="order"),)
    for step in pushdown.above:
        if step.kind == "Cache" and (reason := _cache_reason(step)):
            return (Obstacle(step=step, reason=reason),)
        if step.kind == "Shuffle" and step.bytes_below > MOST_BYTES:
            return (Obstacle(step=step, reason="memory"),)
    return ()


def _is_sparse_of_any_length(step: Transformation) -> bool:
    """Whether a batch of its elements gets the shape of the longest of them."""
    specs = tf.nest.flatten(step.dataset.element_spec)
    return any(
        isinstance(spec, tf.SparseTensorSpec) and not spec.shape.is_fully_defined()
        for spec in specs
    )


def _maps(step: Transformation) -> bool:
    return step.kind in MAPS or step.maps_inside


def _grows(shuffle: Transformation, base: Transformation) -> bool:
    """Whether a shuffle costs much more over the elements of `base`."""
    before, after = element_bytes(base), element_bytes(shuffle)
    buffer = (shuffle.buffer_size or 0) * before  # a checkpoint has each of its elements in full
    return shuffle.bytes_below > MOST_BYTES or (before > after and buffer > MOST_BYTES)


def _cache_reason(cache: Transformation) -> str | None:
    """Why a cache cannot hold this worker's rows alone; None where it can."""
    if cache.filename:
        return "cache-file"
    below = [step for step in cache.walk() if step is not cache]
    if any(step.reshuffles or step.state for step in below):
        return "cache-moves"  # what the script's own cache holds could not be made again
    return None


class _FormReader:
    """Finds the form of datasets, and notes what is in the way."""

    def __init__(self) -> None:
        self._noted: list[Obstacle] = []

    def in_the_way(self, pushdown: Pushdown) -> tuple[Obstacle, ...]:
        """The steps because of which maps are run by every worker; the last one on each way."""
        left = {id(step) for step in pushdown.read_by_all}
        return tuple(one for one in self._noted if id(one.step) in left)

    def form(self, step: Transformation) -> _Form:
        """The samples that `step` gives."""
        if step.kind == "Options":
            below = self.form(step.inputs[0])
            return below if below.links else _Form(_Base(step))
        if step.kind in MAPS:
            return self._map(step)
        if step.kind == "Prefetch":
            below = self.form(step.inputs[0])
            return self._added(below, _Link(step)) if below.links else _Form(_Base(step))
        if step.kind == "Cache":
            return self._cache(step)
        if step.kind == "Zip":
            return self._zip(step)
        if step.kind in _ORDER:
            return self._reordered(step)
        return self._stays(step)

    def _map(self, step: Transformation) -> _Form:
        if step.state:
            return self._stays(step)
        return self._added(self.form(step.inputs[0]), _Link(step))

    def _cache(self, step: Transformation) -> _Form:
        below = self.form(step.inputs[0])
        if not below.links:
            return _Form(_Base(step))
        if reason := _cache_reason(step):
            return self._stays(step, reason)
        return self._added(below, _Link(step))

    def _reordered(self, step: Transformation) -> _Form:
        below = self.form(step.inputs[0])
        caches = [i for i, link in enumerate(below.links) if link.step.kind == "Cache"]
        if caches and step.kind != "AssertCardinality":
            # A pass takes other rows from the cache than the one before.
            cache = below.links[caches[-1]].step
            self._note(cache, "cache-order", step.kind.lower())
            below = _Form(_Base(cache), below.links[caches[-1] + 1 :])
        if not below.links:
            return _Form(_Base(step))
        if step.kind == "Shuffle" and _grows(step, below.base.step):
            return self._stays(step, "memory")
        return replace(below, base=_Base(step, (below.base,)))

    def _zip(self, step: Transformation) -> _Form:
        parts = [self.form(one) for one in step.inputs]
        if not any(part.links for part in parts):
            return _Form(_Base(step))
        if any(link.step.kind == "Cache" for part in parts for link in part.links):
            return self._stays(step)
        base = _Base(step, tuple(part.base for part in parts))
        return _Form(base, (_Link(step, tuple(part.links for part in parts)),))

    def _stays(self, step: Transformation, reason: str | None = None) -> _Form:
        if any(_maps(one) for one in step.walk()):
            known, detail = _reason(step)
            self._note(step, reason or known, detail)
        return _Form(_Base(step))

    def _note(self, step: Transformation, reason: str, detail: str = "") -> None:
        self._noted.append(Obstacle(step=step, reason=reason, detail=detail))

    @staticmethod
    def _added(form: _Form, link: _Link) -> _Form:
        return replace(form, links=(*form.links, link))
