"""Datasets that every worker makes for itself, of which it takes a share.

A worker's part of a pass is each W-th batch of the dataset that the user gave, or all of
what the user's function made for it. A server holds how far each worker is, so that one
that takes another's place resumes where that one stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.data.batches import no_autograph, with_free_batch_axis
from phalanx.data.dataset_identity import DatasetIdentity
from phalanx.data.iterator_position import DataPosition
from phalanx.errors import DataError
from phalanx.training.parameter_server.ps_context import this_worker
from phalanx.training.parameter_server.result_ledger import ResultLedger

_log = logging.getLogger(__name__)
_PYTHON_OPS = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset")
_IGNORE_STATE = 1  # of random generators: a new worker restarts them


class DatasetOnWorkers:
    """A dataset on every worker, one pass of which all workers share.

    Attributes:
        passes: the number of the pass under way.
    """

    ends_by_worker = True

    def __init__(
        self,
        make: Callable[[], Any],
        spec: Any,
        workers: int,
        steps: int | None,
        *,
        by_worker: bool,
    ) -> None:
        """Make a place for how far each worker is.

        Args:
            make: makes the dataset; called in a graph on each worker.
            spec: shapes and dtypes of a batch.
            workers: how many there are.
            steps: batches in a pass of all workers together, None where unknown.
            by_worker: whether that is the worker's own, and not all workers', of which it takes
                each W-th batch.
        """
        self._make = make
        self._spec = spec
        self._workers = workers
        self._by_worker = by_worker
        self.steps = steps
        self.identity = DatasetIdentity()
        self.batch_spec = with_free_batch_axis(spec)
        # For each worker the passes it has finished, and the batches of the next it has done.
        self._progress = tf.Variable(tf.zeros([workers, 2], tf.int64), trainable=False)
        self.passes = 0
        self._done = CompletedBatches(by_worker=by_worker)
        self._ledger = ResultLedger(workers)

    def on_workers(self, coordinator: Any) -> Any:
        """What a step takes its batch from, on every worker."""
        return iter(coordinator.create_per_worker_dataset(self._passes))

    def ticket(self, position: int) -> int:
        """The number of the pass under way."""
        del position
        return self.passes

    def next_pass(self) -> None:
        """Leave what is left of this one."""
        self.passes += 1

    def position(self, *, batch: int, trained: int) -> DataPosition:
        """The position of training; another strategy reads it as steps of the pass."""
        taken = sum(sum(n for n in counts if n != ALL) for counts in self._done_now().rounds)
        return DataPosition(
            batch=batch,
            trained=trained,
            passes=self.passes + bool(taken),
            taken=taken or None,
            learned=None,
            seed=None,
        )

    def state(self) -> Mapping[str, Any]:
        """Which batches of the pass under way are done, by worker."""
        return self._done_now().to_json()

    def restore(self, position: DataPosition, state: Mapping[str, Any] | None) -> None:
        """Leave out what is done, whoever did it; before the first step."""
        if state is None:  # of another strategy, which took the batches in their order
            self.passes = position.passes - (position.taken is not None)
            done = CompletedBatches(number=self.passes, rounds=((position.taken or 0,),))
        else:
            done = CompletedBatches.from_json(state, by_worker=self._by_worker)
            self.passes = done.number
        if self._by_worker and any(len(counts) != self._workers for counts in done.rounds):
            _log.warning("the pass restarts: its data was made for another number of workers")
            done = CompletedBatches(number=self.passes, by_worker=True)
        self._done = done
        self._progress.assign([[self.passes, 0]] * self._workers)

    def _done_now(self) -> CompletedBatches:
        rows = self._progress.numpy().tolist()
        counts = [ALL if p > self.passes else n if p == self.passes else 0 for p, n in rows]
        return self._done.and_then(self.passes, counts)

    def unreported(self) -> list[Any]:
        """What lost workers had done and not reported."""
        return self._ledger.take()

    def is_news(self, worker: int, batch: int) -> bool:
        """Whether a worker's batch of this pass is reported for the first time, as it is now."""
        return self._ledger.is_news(self.passes, worker, batch)

    def with_batch(
        self, iterator: Any, ticket: Any, worker: Any, run: Callable[[Any, Any], Any]
    ) -> Any:
        """Run a step on this worker's next batch of pass `ticket`, if it has one left."""
        done = tf.gather(tf.identity(self._progress), worker)
        reported: list[Any] = []

        def nothing() -> Any:
            """Only who has nothing; traced after what there would be."""
            empty = [tf.zeros([0] * output.shape.rank, output.dtype) for output in reported[1:]]
            return [tf.cast([worker], reported[0].dtype), *empty]

        def with_element(element: Any) -> Any:
            number, batch, content = element

            def train() -> Any:
                outputs = run(content.get_value(), batch)
                reported[:] = outputs
                with tf.control_dependencies(outputs):
                    kept = self._ledger.record_results(number, worker, batch, outputs)
                with tf.control_dependencies([kept]):
                    self._note(worker, number, batch + 1)
                return [tf.ensure_shape(o, [None] * o.shape.rank) for o in outputs]

            def end() -> Any:
                self._note(worker, number + 1, tf.zeros_like(batch))
                return nothing()

            return tf.cond(content.has_value(), train, end)

        return tf.cond(
            done[0] <= ticket,
            lambda: with_element(self._next(iterator, ticket, done)),
            nothing,
        )

    def _note(self, worker: Any, passes: Any, batches: Any) -> None:
        row = tf.stack([passes, batches])
        self._progress.scatter_nd_update([[worker]], [row])

    def _next(self, iterator: Any, ticket: Any, done: Any) -> Any:
        """The first element of the pass that no worker of this rank has done."""
        spec = iterator.element_spec

        def is_done(number: Any, batch: Any, content: Any) -> Any:
            del content
            return (number < ticket) | ((number == done[0]) & (batch < done[1]))

        return tf.while_loop(
            is_done,
            lambda *_: next(iterator),
            next(iterator),
            shape_invariants=(spec[0].shape, spec[1].shape, spec[2]),
        )

    def _passes(self) -> Any:
        """Pass after pass: (its number, the batch's number in it, the batch or none)."""
        whole, worker, first = self._make(), this_worker(), self.passes

        def wrap(number: Any) -> Any:
            own = self._done.skip_completed(whole, number, worker)
            own = own if self._by_worker else own.shard(self._workers, worker)
            # Passes before the first are opened, not read: a shuffle draws its seed when opened.
            most = tf.where(number < first, tf.zeros_like(number), tf.int64.max)
            batches = tf.data.Dataset.zip((tf.data.Dataset.range(most), own)).map(
                no_autograph(lambda i, b: (number, i, tf.experimental.Optional.from_value(b)))
            )
            empty = tf.experimental.Optional.empty(self._spec)
            end = tf.constant(tf.int64.max, tf.int64)
            return batches.concatenate(tf.data.Dataset.from_tensors((number, end, empty)))

        return tf.data.Dataset.range(tf.int64.max).flat_map(no_autograph(wrap)).prefetch(2)


def shared_dataset(dataset: tf.data.Dataset, workers: int) -> DatasetOnWorkers:
    """Of a dataset of batches, each worker takes each W-th batch.

    Raises:
        DataError: it cannot be made in another process.
    """
    options = tf.data.Options()
    options.deterministic = True  # all workers must walk one order
    variant = tf.data.experimental.to_variant(dataset.with_options(options))
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=_IGNORE_STATE, strip_device_assignment=True
    )
    _refuse_python(graph.numpy())
    spec = dataset.element_spec

    def make() -> Any:
        return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)

    count = int(dataset.cardinality())
    return DatasetOnWorkers(make, spec, workers, count if count >= 0 else None, by_worker=False)


def made_datasets(function: Callable[[Any], Any], workers: int) -> DatasetOnWorkers:
    """Each worker has what `function` makes of its `tf.distribute.InputContext`.

    Raises:
        DataError: the function makes no dataset.
    """
    example = function(tf.distribute.InputContext(workers, 0, 1))
    if not isinstance(example, tf.data.Dataset):
        raise DataError(
            "The function that makes data from an input context must return a tf.data.Dataset; "
            f"found a {type(example).__name__}."
        )

    def make() -> Any:
        return function(tf.distribute.InputContext(workers, this_worker(), 1))

    return DatasetOnWorkers(make, example.element_spec, workers, None, by_worker=True)


def _refuse_python(graph: bytes) -> None:
    found = next((name for name in _PYTHON_OPS if name.encode() in graph), None)
    if found is not None:
        raise DataError(
            f"Asked to train under parameter-server on a dataset that calls Python ({found}), "
            "which runs in the chief alone. Use TensorFlow's operations, or pass arrays."
        )


# A pass that is resumed is read again. The n-th batch of it was worker n modulo W's, who
# had done so many of its own: so a batch's number shows whether it is left, and those that are
# left may be shared out among another number of workers.

ALL = int(tf.int64.max)
"""Batches of a worker that has done its part."""


@dataclass(frozen=True, kw_only=True)
class CompletedBatches:
    """What of one pass was trained before.

    Attributes:
        number: the pass.
        rounds: for each time that it was broken off, how many batches each worker had done then,
            of what was left by the times before.
        by_worker: whether each worker has data of its own, and not each W-th batch.
    """

    number: int = 0
    rounds: tuple[tuple[int, ...], ...] = ()
    by_worker: bool = False

    def to_json(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"pass": self.number, "rounds": [list(r) for r in self.rounds]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, by_worker: bool) -> CompletedBatches:
        """What `to_json` gave."""
        rounds = tuple(tuple(int(n) for n in counts) for counts in document["rounds"])
        return cls(number=int(document["pass"]), rounds=rounds, by_worker=by_worker)

    def and_then(self, number: int, counts: Sequence[int]) -> CompletedBatches:
        """With what was done of pass `number` since."""
        before = self.rounds if number == self.number else ()
        new = (tuple(counts),) if any(counts) else ()
        return CompletedBatches(number=number, rounds=before + new, by_worker=self.by_worker)

    def skip_completed(self, dataset: Any, number: Any, worker: Any) -> Any:
        """The batches of pass `number` (a tensor) that are left; in a graph, on a worker."""
        for counts in self.rounds:
            dataset = self._without(dataset, tf.constant(counts, tf.int64), number, worker)
        return dataset

    def _without(self, dataset: Any, counts: Any, number: Any, worker: Any) -> Any:
        workers = tf.size(counts, out_type=tf.int64)

        def is_left(place: Any, *batch: Any) -> Any:
            del batch
            who, which = (worker, place) if self.by_worker else (place % workers, place // workers)
            return (number != self.number) | (which >= tf.gather(counts, who))

        left = dataset.enumerate().filter(no_autograph(is_left))
        return left.map(no_autograph(lambda place, batch: batch))
