"""How much of the global batch a replica holds, known to everything that runs in its step.

A replica with n_r of the n samples of a global batch contributes n_r / n of the mean
loss. Whoever computes a gradient, a loss or a statistic inside the step asks
`current_replica_batch()`. Outside a step that Phalanx runs there is no share, and Keras's and
`tf.distribute`'s own conventions hold (a custom training loop sums its replicas' gradients).
In a local step, which exchanges nothing, the gradient is the mean over the replica's own samples.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from phalanx.gradients.all_reduce import reduce_sum
from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.graph_walk import graph_around_branches
from phalanx.gradients.metric_results import (
    DerivedResult,
    MetricResult,
    derived_result,
    is_of_past_state,
    reads_of,
)
from phalanx.gradients.row_sums import RowSums, Term
from phalanx.gradients.tape_gradients import TapeGradients

CaptureFn = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
"""Gets the step (int64), the position of the first bad variable (int64), whether this replica's own
gradients were bad, and whether the total can be so by them (bool); gives any tensor."""


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a Keras `SeedGenerator`, which counts draws."""
    return str(getattr(variable, "path", "")).endswith("seed_generator_state")


class ReplicaBatch:
    """One replica's share of one global batch, while its step is traced or run.

    Attributes:
        count: samples this replica holds, scalar int32; 0 for a replica without any.
        total: samples in the global batch, scalar int32.
        start: the first of this replica's samples in the global batch, scalar int32.
        own_rows: rows of this replica's data, scalar int32: `count`, or those that stand in.
        rows_of_tensors: rows of each tensor of this replica's data, scalars int32, where these can
            differ; else empty.
        static_count: rows of this replica's data, where they are known while the step is traced.
        is_local: whether replicas add up nothing in this step.
        weight: count / total, scalar float32.
        may_be_empty: whether `count` can be 0; False saves the guards against it.
        syncs_batchnorm: whether BatchNormalization has the mean and variance of the global batch.
        assigned: Keras variables that the step assigned before its gradient was applied,
            by id, in order of first assignment.
        invariant: by id, Keras variables beside seeds that every replica assigns the same value.
        loss: the replica's loss as its optimizer was given it, scalar, once that is known.
        keep: called, in the graph, where the step is the first with a gradient that is not
            finite; None where it is not kept.
        draw_counter: finds the counter of the stateful random draw that is being traced; None
            where such draws keep a counter of their own.
        batch_size_in_shapes: decides which constant shapes of the step name the batch; None where
            the size of a global batch is unknown.
        tape_gradients: what tapes have given in the step.
        row_sums: finds the sums over rows among the scalars of the step.
        wants_before: whether to fill `before`.
        before: by id, what the variables in `assigned` were before, or since they were reset.
        reset_in_branch: by id, the graph of a branch in which a metric's variable was reset.
        results: by their ids, values that metrics gave as their results in the step, and which.
        on_its_own: by id, Keras variables that a replica is to assign of its own rows.
        is_by_row: whether the gradients that a tape gives now are those of single rows.
        extensions: what other code keeps with the step, by its class.
    """

    def __init__(
        self,
        count: tf.Tensor,
        total: tf.Tensor,
        *,
        start: Any = 0,
        own_rows: tf.Tensor | None = None,
        rows_of_tensors: Sequence[tf.Tensor] = (),
        static_count: int | None = None,
        is_local: bool = False,
        may_be_empty: bool = True,
        syncs_batchnorm: bool = True,
    ) -> None:
        self._count = count
        self._total = total
        self._start = start
        self._own_rows = tf.maximum(count, 1) if own_rows is None else own_rows
        self.rows_of_tensors = tuple(rows_of_tensors)
        self.static_count = static_count
        self.is_local = is_local
        self.may_be_empty = may_be_empty
        self.syncs_batchnorm = syncs_batchnorm
        self.invariant: set[int] = set()
        self.on_its_own: set[int] = set()
        self.extensions: dict[type, Any] = {}
        self._weight = tf.cast(count, tf.float32) / tf.cast(total, tf.float32)
        self.assigned: dict[int, Any] = {}
        self.before: dict[int, Any] = {}
        self.reset_in_branch: dict[int, Any] = {}
        self.wants_before = False
        self.results: dict[int, tuple[Any, MetricResult]] = {}
        self.row_sums = RowSums(())
        self.tape_gradients = TapeGradients()
        self._is_published = False
        self.loss: tf.Tensor | None = None
        self.keep: CaptureFn | None = None
        self.draw_counter: Callable[[tuple[int, int]], Any] | None = None
        self.batch_size_in_shapes: Any = None
        self._weighted_losses: set[int] = set()
        self._backward_is_weighed = False
        self.is_by_row = False
        self._counted: dict[tuple[int, str], Any] = {}
        self._gathered: set[tuple[int, str]] = set()
        self._totals: set[tuple[int, str]] = set()
        self._counts_of_metrics: set[tuple[int, str]] = set()
        self._own: set[tuple[int, str]] = set()

    def note_invariant(self, variables: Iterable[Any]) -> None:
        """Know that every replica assigns these Keras variables the same value in this step."""
        self.invariant.update(id(variable) for variable in variables)

    def is_replica_invariant(self, variable: Any) -> bool:
        """Whether every replica assigns a Keras variable the same value in this step.

        So one without samples does too. Other variables keep their values there, unless the graph
        shows that a new value does not depend on samples.
        """
        return is_seed(variable) or id(variable) in self.invariant

    @property
    def count(self) -> tf.Tensor:
        """Samples this replica holds."""
        return self._count if self.in_own_strategy() else _published().read_value()[0]

    @property
    def total(self) -> tf.Tensor:
        """Samples in the global batch."""
        return self._total if self.in_own_strategy() else _published().read_value()[1]

    @property
    def start(self) -> tf.Tensor:
        """The first of this replica's samples in the global batch."""
        return self._start if self.in_own_strategy() else _published().read_value()[2]

    @property
    def own_rows(self) -> tf.Tensor:
        """Rows of this replica's data: its samples, or those that stand in where it has none."""
        return self._own_rows if self.in_own_strategy() else _published().read_value()[3]

    @property
    def weight(self) -> tf.Tensor:
        """The share, count / total."""
        if self.in_own_strategy():
            return self._weight
        return tf.cast(self.count, tf.float32) / tf.cast(self.total, tf.float32)

    def of_global_batch(self, tensor: Any) -> Any:
        """The number that one device would have where a symbolic tensor is this replica's.

        None where it is no number of samples and not the first one.
        """
        numbers = (
            (self._count, self._total),
            (self._own_rows, self._total),
            (self._total, self._total),
            (self._start, tf.zeros_like(self._start)),
        )
        for own, whole in numbers:
            if tf.is_symbolic_tensor(own) and key_of(own) == key_of(tensor):
                return whole
        return None

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Let functions of the script's own, which the step calls, read the share.

        Such a function is traced once and called in each trace of the step, so it must not hold
        tensors of one: it reads variables, which say "a batch of its own" outside of steps.
        """
        held = _published()
        held.assign(tf.stack([self._count, self._total, self._start, self._own_rows]))
        self._is_published = True
        try:
            yield
        finally:
            held.assign(_OF_ITS_OWN)

    def in_own_strategy(self) -> bool:
        """Whether what is being traced is the step itself, or its branches, and no function."""
        if tf.executing_eagerly() or not self._is_published:
            return True
        is_traced = tf.is_symbolic_tensor(self._count)
        return is_traced and graph_around_branches() is self._count.graph

    def is_within_reach(self) -> bool:
        """Whether what runs now can read the share: not where a graph is left by `init_scope`."""
        return not (tf.executing_eagerly() and tf.is_symbolic_tensor(self._count))

    def record_result(self, value: Any, result: MetricResult) -> None:
        """Remember that `value`, or those of that dictionary, are a metric's result."""
        self.results.setdefault(id(value), (value, result))
        self._counts_of_metrics.update(map(key_of, reads_of(value)))
        if isinstance(value, dict):
            for name, one in value.items():
                self.record_result(one, MetricResult(result.metric, (*result.names, name)))

    def is_count_of_metric(self, tensor: Any) -> bool:
        """Whether a symbolic tensor is what a metric has counted of this replica's rows."""
        return key_of(tensor) in self._counts_of_metrics

    def result_of(self, value: Any) -> MetricResult | DerivedResult | None:
        """The metric's result that `value` is, or what it computes of such results alone.

        It is None where the step assigns the metric afterwards, such as by `reset_state`.
        """
        if id(value) in self.results:
            return None if is_of_past_state(value) else self.results[id(value)][1]
        return derived_result(value, self.results.values())

    def record_gathered(self, tensor: Any) -> None:
        """Remember that `tensor` has the rows of all replicas."""
        if tf.is_symbolic_tensor(tensor):
            self._gathered.add(key_of(tensor))

    def record_own(self, tensors: Iterable[Any]) -> None:
        """Remember that tensors are to be of this replica's rows, though they combine them."""
        self._own.update(key_of(tensor) for tensor in tensors if tf.is_symbolic_tensor(tensor))

    def is_own(self, tensor: Any) -> bool:
        """Whether a symbolic tensor is to be of this replica's rows."""
        return key_of(tensor) in self._own

    def record_total(self, value: Any) -> None:
        """Remember that replicas have added up `value`, so that all have the same."""
        value = value.values if isinstance(value, tf.IndexedSlices) else value
        if value is not None and tf.is_symbolic_tensor(value):
            self._totals.add(key_of(value))

    def record_weighted_loss(self, optimizer: object) -> None:
        """Remember that `optimizer`'s loss, so its gradients, already carry the weight."""
        self._weighted_losses.add(id(optimizer))

    def loss_is_weighted(self, optimizer: object) -> bool:
        """Whether `optimizer`'s gradients already carry this share's weight."""
        return id(optimizer) in self._weighted_losses

    @property
    def any_loss_is_weighted(self) -> bool:
        """Whether some optimizer's loss carries the weight."""
        return bool(self._weighted_losses)

    @property
    def backward_is_weighed(self) -> bool:
        """Whether the gradients of a backward pass already carry the weight."""
        return self.any_loss_is_weighted or self._backward_is_weighed

    @contextlib.contextmanager
    def backward(self, *, is_weighed: bool) -> Iterator[None]:
        """A backward pass, which begins with gradients that carry the weight or do not."""
        before, self._backward_is_weighed = self._backward_is_weighed, is_weighed
        try:
            yield
        finally:
            self._backward_is_weighed = before

    @contextlib.contextmanager
    def by_row(self) -> Iterator[None]:
        """Gradients of one row each, as those that make a Jacobian: replicas add up nothing."""
        before, self.is_by_row = self.is_by_row, True
        try:
            yield
        finally:
            self.is_by_row = before

    def inverse_weight(self, dtype: Any) -> tf.Tensor:
        """total / count as a scalar of `dtype`; 0 where the replica holds nothing.

        Multiplying a *sum* over the replica's samples by this makes the weighted mean
        over replicas the sum over the global batch.
        """
        return tf.math.divide_no_nan(tf.cast(self.total, dtype), tf.cast(self.count, dtype))

    @contextlib.contextmanager
    def looking_at(self, data: Any) -> Iterator[None]:
        """Find sums over the rows of `data`, this replica's part, in what is traced meanwhile."""
        previous = self.row_sums
        counts = (self.count, self.total, self.weight)
        self.row_sums = RowSums(data, counts, self._gathered, self._totals, self._counts_of_metrics)
        try:
            yield
        finally:
            self.row_sums = previous

    def for_mean(self, scalar: Any) -> Any:
        """`scalar` with what makes its mean over replicas, weighed by their samples, right.

        A mean over rows stays as it is; the sums over rows in it are multiplied by total / count,
        and those that are divided by a count of entries are divided by that of all replicas. A sum
        of integers becomes a float64, as these factors are no integers.
        """
        parts = self.parts(scalar)
        return scalar if parts is None else self._added_up(parts, scalar.dtype)

    def weighed(self, loss: Any) -> Any:
        """This replica's part of the global `loss`, a scalar: means weighed, sums as they are."""
        parts = self.parts(loss, is_mean=False)
        if parts is None:
            return loss * tf.cast(self.weight, loss.dtype)
        return self._added_up(parts, loss.dtype)

    def parts(self, scalar: Any, *, is_mean: bool = True) -> list[tuple[Any, Any]] | None:
        """Scalars and their factors, which add up to the replica's part of a global `scalar`.

        Args:
            scalar: a scalar of the step.
            is_mean: whether replicas' parts are weighed by their samples and added up, else they
                are added up as they are.

        Returns:
            Pairs of a tensor and a factor, float32 or float64; None where the whole is a mean
            over rows.
        """
        terms = self.row_sums.terms(scalar)
        if not terms:
            return None
        return [(term.value, self._factor(term, is_mean)) for term in terms]

    def _factor(self, term: Term, is_mean: bool) -> Any:
        dtype = tf.float64 if term.value.dtype == tf.float64 else tf.float32
        factor = tf.cast(term.factor, dtype)
        if not term.is_sum:
            return factor if is_mean else factor * tf.cast(self.weight, dtype)
        # A stand-in row is no sample.
        factor *= self.inverse_weight(dtype) if is_mean else tf.cast(self.count > 0, dtype)
        if term.count is None:
            return factor
        divisor = term.count.finish(self._whole(term.count.sum))
        return tf.math.divide_no_nan(factor, tf.cast(divisor, dtype))

    def _whole(self, part: Any) -> Any:
        """The sum of what replicas count, added up once however often it is asked for."""
        graph = tf.compat.v1.get_default_graph()
        if (known := self._counted.get((id(graph), part.name))) is not None:
            return known
        whole = self._counted[id(graph), part.name] = self.over_replicas(part)
        return whole

    def _added_up(self, parts: list[tuple[Any, Any]], dtype: Any) -> Any:
        dtype = dtype if dtype.is_floating else tf.float64
        # The mean of no entry is NaN; its factor is 0.
        factors = [(tf.cast(one, dtype), tf.cast(factor, dtype)) for one, factor in parts]
        whole = tf.add_n([tf.math.multiply_no_nan(one, factor) for one, factor in factors])
        self.row_sums.take_for_mean(whole)
        return whole

    def over_replicas(self, value: Any) -> Any:
        """The sum of a scalar over the replicas that hold samples; no gradient flows.

        In a local step it is this replica's own.
        """
        return self.sums_over_replicas([value])[0]

    def sums_over_replicas(self, values: Sequence[Any]) -> list[Any]:
        """`over_replicas` of each, added up together; their shapes are equal on all replicas."""
        held = [
            tf.stop_gradient(tf.where(self.count > 0, value, tf.zeros_like(value)))
            for value in values
        ]
        return held if self.is_local else reduce_sum(held)


_OF_ITS_OWN = (1, 1, 0, 1)


@functools.cache
def _published() -> tf.Variable:
    """Count, total, start and own rows of the step under way, int32."""
    with tf.init_scope():
        return tf.Variable(_OF_ITS_OWN, trainable=False, dtype=tf.int32, name="phalanx_share")


FindBatch = Callable[[], ReplicaBatch | None]
"""Gives the share of the replica whose step is being traced or run, one of many; else None."""
