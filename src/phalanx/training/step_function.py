"""One step on one global batch, and several in one call: the functions that train.

Built once per `compile`, kept in Keras's own `model.train_function` (and `test_function`,
`predict_function`), which Keras clears whenever a new function is needed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import keras
import tensorflow as tf

from phalanx.data.batches import rows_in, static_rows, static_share, tensors_of, with_rows
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.distributed.topology import ReplicaTopology, replica_id_in_group, rows_of
from phalanx.gradients.all_reduce import reduce_sum
from phalanx.gradients.dynamic_rows import RowsOfTraces
from phalanx.gradients.gathered_batch import all_gather_batch
from phalanx.gradients.graph_walk import is_symbolic
from phalanx.gradients.metric_results import DerivedResult, MetricResult
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.step_context import current_replica_batch, step_scope
from phalanx.gradients.tape_gradients import TapeGradients, UsesGradientsError
from phalanx.keras_compat.constant_shapes import BatchSizeInShapes
from phalanx.keras_compat.draw_counters import DrawCounters
from phalanx.keras_compat.global_values import mean_of_all_rows
from phalanx.keras_compat.loss_patches import results_are_noted
from phalanx.keras_compat.model_access import (
    compute_loss,
    has_batchnorm,
    has_own_apply,
    has_own_step,
    sequentials_to_build,
    track_loss,
)
from phalanx.keras_compat.optimizer_patches import adds_up
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.recorded_spans import RecordedSpan
from phalanx.training.batch_arrivals import GraphBatchProbe, HostBatchProbe
from phalanx.training.broadcast_variables import MadeInStep
from phalanx.training.error_context import axis_0_explained, replica_scope
from phalanx.training.nonfinite_capture import NonFiniteCapture
from phalanx.training.run_switches import runs_eagerly, syncs_batchnorm

Kind = Literal["train", "test", "predict"]

_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf")
"""Operations that run a function of the step's, a `tf.function` or the branch of a condition."""

Outputs = tuple[tuple[tf.Tensor, Any], ...]
"""Per local replica: (samples it held, scalar int32; what the model's step returned)."""


class _TapesGiveTotals:
    """Among a step function's extensions if its step uses gradients before it applies them."""


def nothing_trained(local: int) -> Outputs:
    """What `local` replicas return that held no sample."""
    return tuple((tf.constant(0), {}) for _ in range(local))


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """What a step function is made for; another plan needs another function.

    Attributes:
        strategy: the strategy that the replicas belong to.
        topology: the replicas of this process.
        counted: whether elements are `(total, parts)` of `phalanx.data.batches`, or what a
            distributed dataset of the user's gives.
        may_be_empty: whether a replica may be without samples.
        may_be_undivided: whether the first replica may have all samples of a batch.
        known_length: whether it is known when the data ends. Where it is not, a step must
            ask before it begins: TensorFlow may run what needs no data, such as counting
            the iteration, before it finds that there is none.
    """

    strategy: tf.distribute.Strategy
    topology: ReplicaTopology
    counted: bool
    may_be_empty: bool
    may_be_undivided: bool
    known_length: bool


class StepFunction:
    """Runs the model's `train_step`, `test_step` or `predict_step` on every replica.

    Attributes:
        plan: what it was made for.
        assigned: by id, the Keras variables that a replica assigned outside its optimizer
            (metrics, moving statistics, seeds). Complete after the first call.
        invariant: by id, those of them that every replica assigns the same value; without seeds.
        results: by the name under which a step returns it, what is computed of metrics.
            Complete after the first call.
        extensions: by class, what was made for this function and lives as long.
        is_traced: whether a step has been traced or run.
        has_dynamic_collectives: whether a step exchanges tensors whose shape differs from batch to
            batch; several of these cannot be in one graph.
        version: how often what was traced has been outdated.
        is_local: whether replicas add up nothing in a step.
        samples: those of the local steps since somebody set it to 0: this replica's, and of the
            global batches; int64.
        batch_size: samples in every global batch but the last of a pass; None where unknown.
    """

    def __init__(self, model: Any, kind: Kind, plan: StepPlan) -> None:
        self.plan = plan
        self.assigned: dict[int, Any] = {}
        self.invariant: set[int] = set()
        self.results: dict[str, MetricResult | DerivedResult] = {}
        self.extensions: dict[type, Any] = {}
        self.is_traced = False
        self.has_dynamic_collectives = False
        self.batch_size: int | None = None
        self.is_local = False
        self.samples: Any = None
        self._constant_sizes: set[int] = set()
        self._model = model
        self._kind = kind
        self._eager = runs_eagerly(model)
        self._step = step_of(model, kind)
        whole = bool(model.jit_compile) and not self._eager
        if whole and tf.distribute.has_strategy():
            whole = False
            if kind == "train" and compile_without_collectives(model):
                self._step = compiled_train_step(model)
        self._whole = whole
        # Compiled in full, and on TPUs, a step has static shapes.
        is_static = self._eager or whole or isinstance(plan.strategy, tf.distribute.TPUStrategy)
        may_be_dynamic = plan.counted and plan.topology.total > 1 and not is_static
        self._rows = RowsOfTraces(are_dynamic=may_be_dynamic)
        own = has_own_step(model, kind) or has_own_apply(getattr(model, "optimizer", None))
        may_use = kind == "train" and own and not (self._eager or whole)
        self._tapes_are_known = not may_use or plan.topology.total == 1
        self._needs_totals = False
        self._arrivals = GraphBatchProbe.for_recorder(plan.strategy)
        self.version = 0
        self.retrace()

    def retrace(self) -> None:
        """Forget what was traced, which something that the step asks in Python has outdated."""
        self.version += 1
        self._one = self.compile_like_model(self.on_replicas, jit_compile=self._whole)
        self._next = self.compile_like_model(self._on_next)
        self._apart = self.compile_like_model(self._run_and_capture)
        self._many = self.compile_like_model(self._while_data)

    def take_batch_size(self, size: int | None) -> None:
        """Know the size of the global batches; trace again where a shape in the step named it."""
        previous, self.batch_size = self.batch_size, size
        if previous != size and self._constant_sizes & {previous, size}:
            self.retrace()

    def add_up(self, *, is_local: bool, samples: Any = None) -> None:
        """Have steps from now on be local ones, or add up gradients.

        Args:
            is_local: whether they are local.
            samples: a variable that counts the samples of local steps.
        """
        if is_local != self.is_local or samples is not self.samples:
            self.is_local, self.samples = is_local, samples
            self.invariant.clear()
            self.retrace()

    def build(self, batch_spec: Any, size: int | None) -> None:
        """Make what the step makes lazily, by tracing it; no step is run.

        Args:
            batch_spec: shapes and dtypes of a batch, as `train_step` is given it.
            size: rows of every global batch, where all have equally many.
        """
        count, topology = tf.TensorSpec([], tf.int32), self.plan.topology
        rows = [
            static_share(size, replica, topology.total)
            for replica in range(topology.first, topology.first + topology.local)
        ]
        parts = tuple((count, with_rows(batch_spec, each)) for each in rows)
        element = (count, parts) if self.plan.counted else batch_spec
        # Apart: what is traced now does not know yet who will look at the gradients.
        plain = tf.autograph.experimental.do_not_convert(self.on_replicas)
        self._look_by(
            lambda: tf.function(plain).get_concrete_function(element), is_static=size is not None
        )

    def __call__(self, *arguments: Any) -> Any:
        """Called by Keras's own `fit`, which found it in its place: give that to Keras's own."""
        getattr(self._model, f"make_{self._kind}_function")(force=True)
        return getattr(self._model, f"{self._kind}_function")(*arguments)

    def on_batch(self, element: Any) -> Outputs:
        """Run one step on one element."""
        arrival = HostBatchProbe(self._data_of(element)) if flight.is_open else None
        with flight.execution(self._kind, 1, arrival):
            self.look_at_step(element)
            outputs: Outputs = self._apart(element) if self._whole else self._one(element)
        return outputs

    def look_at_step(self, element: Any) -> None:
        """Before the first step: see, by tracing one, how it must be traced.

        Tapes give totals where the step uses gradients, and the number of rows is dynamic unless
        the step needs it.

        Args:
            element: a batch, or its spec.
        """
        is_static = not self._rows.are_known and static_rows(self._data_of(element)) is not None
        if not self._tapes_are_known or is_static:
            self._look_by(lambda: self._one.get_concrete_function(element), is_static=is_static)
        if self.is_traced:
            self._broadcast_made_in_step()

    def _broadcast_made_in_step(self) -> None:
        """Give every worker the chief's values of what the step made lazily."""
        if self._kind == "train" and (made := self.extensions.get(MadeInStep)):
            made.broadcast_from_chief()

    def _look_by(self, trace: Callable[[], Any], *, is_static: bool) -> None:
        were_known, self._tapes_are_known = self._tapes_are_known, True
        take_back = sequentials_to_build(self._model)

        def again() -> None:
            take_back()
            self.retrace()

        try:
            self._rows.decide(trace, again, are_static=is_static)
            need_totals = self._needs_totals and not were_known
        except UsesGradientsError:
            need_totals = True
        if need_totals:
            self.extensions[_TapesGiveTotals] = _TapesGiveTotals()
            self.retrace()
            self._rows.decide(trace, again, are_static=is_static)

    def on_iterator(self, iterator: Any, steps: int) -> tuple[int, Outputs]:
        """Run up to `steps` steps.

        Returns:
            How many ran, fewer where the data ended, and the outputs of the last one.

        Raises:
            StopIteration: there was no batch left at all.
        """
        self.look_at_step(iterator.element_spec)
        one = steps == 1 and self.plan.known_length
        with flight.execution(self._kind, steps, self._arrivals) as execution:
            apart = self.has_dynamic_collectives and self.plan.known_length
            if one or apart or self._eager or not self.plan.counted:
                return self._one_by_one(iterator, steps, execution)
            done, outputs = self._many(iterator, tf.constant(steps))
            execution.done = int(done)
            if execution.done == 0:
                raise StopIteration
        return execution.done, outputs

    def _one_by_one(
        self, iterator: Any, steps: int, under_way: RecordedSpan
    ) -> tuple[int, Outputs]:
        outputs: Outputs = ()
        for done in range(steps):
            under_way.already = done
            try:
                outputs = self._next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if done == 0:
                    raise StopIteration from None
                under_way.done = done
                return done, outputs
        return steps, outputs

    def _on_next(self, iterator: Any) -> Outputs:
        element = next(iterator)
        self._note(element, 1)
        return self._run_and_capture(element)

    def _note(self, element: Any, number: Any) -> None:
        """Record in the flight recorder that the execution's `number`-th batch has arrived."""
        if self._arrivals is not None:
            self._arrivals.note(self._data_of(element), number)

    def _data_of(self, element: Any) -> Any:
        """What this process's first replica holds of a batch, as `fit` takes it."""
        if self.plan.counted:
            return element[1][0][1]
        local = self.plan.strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: local(value)[0], element)

    def compile_like_model(self, python: Callable[..., Any], **options: Any) -> Any:
        """`python` as a TensorFlow function, or as it is where the model runs eagerly."""
        plain = tf.autograph.experimental.do_not_convert(python)
        return plain if self._eager else tf.function(plain, reduce_retracing=True, **options)

    def _while_data(self, iterator: Any, steps: tf.Tensor) -> tuple[tf.Tensor, Outputs]:
        """Steps in one graph, so that Python is asked once for all of them."""
        traced = self._one.get_concrete_function(iterator.element_spec).structured_outputs
        specs = tf.nest.flatten(traced)
        blanks = [tf.zeros([d or 0 for d in s.shape], s.dtype) for s in specs]

        def more(done: Any, batch: Any, *_: Any) -> Any:
            return tf.logical_and(done < steps, batch.has_value())

        def body(done: Any, batch: Any, *_: Any) -> Any:
            element = batch.get_value()
            self._note(element, done + 1)
            outputs = tf.nest.flatten(self._run_and_capture(element))
            last = done + 1 >= steps
            following = tf.cond(last, lambda: batch, iterator.get_next_as_optional)
            return (done + 1, following, *outputs)

        done, _, *outputs = tf.while_loop(
            more,
            body,
            (tf.constant(0), iterator.get_next_as_optional(), *blanks),
            shape_invariants=(
                tf.TensorShape([]),
                tf.OptionalSpec(iterator.element_spec),
                *(s.shape for s in specs),
            ),
            parallel_iterations=1,  # What needs no weights must not run ahead of its peers.
        )
        return done, tf.nest.pack_sequence_as(traced, outputs)

    def _run_and_capture(self, element: Any) -> Outputs:
        outputs: Outputs = self._one(element)
        self.capture_after(element)
        return outputs

    def capture_after(self, element: Any) -> None:
        """Keep the step on `element` that was just run, where it could not do so itself.

        XLA cannot call what keeps a batch, so that is next to a step that is compiled in full.
        """
        kept = self.extensions.get(NonFiniteCapture)
        if kept is not None and self._whole:
            kept.watch(element)

    def on_replicas(self, element: Any) -> Outputs:
        """One step on one element, to be traced into a function, or run eagerly."""
        outputs: Outputs = self._rows.run(lambda: self._on_replicas(element))
        return outputs

    def _on_replicas(self, element: Any) -> Outputs:
        strategy, topology = self.plan.strategy, self.plan.topology
        arguments = element if self.plan.counted else (None, element)
        outputs = strategy.run(self._on_replica, args=arguments)
        flat = [strategy.experimental_local_results(v) for v in tf.nest.flatten(outputs)]
        return tuple(
            # A number of Python's that all replicas return comes back as one.
            tf.nest.pack_sequence_as(outputs, [v[min(i, len(v) - 1)] for v in flat])
            for i in range(topology.local)
        )

    def _on_replica(self, total: Any, parts: Any) -> tuple[tf.Tensor, Any]:
        topology, replica = self.plan.topology, replica_id_in_group()
        if self.plan.counted:
            start, _ = rows_of(replica, topology.total, total)
            count, data = parts[replica - topology.first]
        else:
            total, start, count, data = count_local_samples(parts, replica, topology.total)
        data = self._rows.of(data)
        rows: list[tf.Tensor] = []
        if self.plan.may_be_undivided:
            start = tf.where(count > 0, start, 0)
            rows = [rows_in(one) for one in tensors_of(data)]
        replica_batch = ReplicaBatch(
            count,
            total,
            start=start,
            own_rows=next(iter(rows), None),
            rows_of_tensors=rows,
            static_count=static_rows(data),
            is_local=self.is_local,
            may_be_empty=self.plan.may_be_empty,
            syncs_batchnorm=syncs_batchnorm(),
        )
        replica_batch.tape_gradients = TapeGradients(are_totals=_TapesGiveTotals in self.extensions)
        kept = self.extensions.get(NonFiniteCapture)
        if kept is not None and not self._whole:
            replica_batch.keep = partial(kept.keep, replica, total, (count, data))
        replica_batch.batch_size_in_shapes = BatchSizeInShapes(
            self.batch_size,
            topology.total,
            partial(_shapes_of_variables, self._model),
            self._constant_sizes,
        )
        if not self._model.jit_compile:  # XLA has kernels of its own
            counters = self.extensions.setdefault(DrawCounters, DrawCounters())
            replica_batch.draw_counter = counters.of_trace(int(replica))
        plain = isinstance(self.plan.strategy, MultiWorkerStrategy)
        collectives = getattr(self.plan.strategy, "collectives", None)
        dynamic = getattr(collectives, "dynamic_shapes", 0)
        with (
            step_scope(replica_batch=replica_batch),
            replica_batch.published() if plain and topology.total > 1 else nullcontext(),
            replica_batch.looking_at(data),
            results_are_noted,
            replica_scope(replica),
            axis_0_explained(data, topology.total),
        ):
            logs = self._step(data)
            replica_batch.tape_gradients.take_returned(logs)
            if isinstance(logs, dict):
                self.results |= _results_in(flat_logs(logs), replica_batch)
            if isinstance(logs, dict) or self._kind == "predict":
                logs = tf.nest.map_structure(partial(mean_of_all_rows, replica_batch), logs)
            if isinstance(logs, dict) and adds_up() and self._kind != "predict":
                logs = tf.nest.map_structure(partial(_with_all_rows, replica_batch), logs)
        self._needs_totals |= replica_batch.tape_gradients.need_totals
        self.assigned.update(replica_batch.assigned)
        self.invariant.update(replica_batch.invariant)
        if self.samples is not None:
            self.samples.assign_add(tf.cast(tf.stack([count, total]), tf.int64))
        self.is_traced = True
        if getattr(collectives, "dynamic_shapes", 0) > dynamic:
            self.has_dynamic_collectives = True
        self._broadcast_made_in_step()
        return count, {} if logs is None else logs


def _with_all_rows(replica_batch: ReplicaBatch, value: Any) -> Any:
    """A value that a step returns for each row, of the global batch; others as they are."""
    return all_gather_batch(value) if replica_batch.row_sums.is_of_rows(value) else value


def _shapes_of_variables(model: Any) -> set[tuple[int, ...]]:
    return {tuple(variable.shape) for variable in model.variables}


def _results_in(
    logs: dict[str, Any], replica_batch: ReplicaBatch
) -> dict[str, MetricResult | DerivedResult]:
    """The entries of logs that are results of metrics, or computed of such results alone.

    A branch, or a function that keeps a graph of its own, returns another tensor for a result that
    it computes. Such an entry is found by the metric's name.
    """
    found = {
        name: result
        for name, value in logs.items()
        if (result := replica_batch.result_of(value)) is not None
    }
    known = [r.metric for r in found.values() if isinstance(r, MetricResult)]
    by_name = {
        name: result
        for noted, result in replica_batch.results.values()
        if not any(result.metric is one for one in known)
        and (name := result.names[-1] if result.names else result.metric.name) in logs
        and _may_come_from_function(logs[name], noted)
    }
    return by_name | found


def _may_come_from_function(value: Any, noted: Any) -> bool:
    """Whether a step may have `value` from a function or a branch that computed `noted`.

    A script may give its own value the name of a metric: a loss beside the tracker of `compile`.
    """
    if not isinstance(value, tf.Tensor):
        return False
    graph = noted.graph if is_symbolic(noted) else None
    if not is_symbolic(value):  # in an eager step only functions have graphs
        return graph is not None
    if graph is value.graph:
        return False
    operation = value.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return operation.type in _CALLS


def flat_logs(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs without the inner dictionaries that compiled metrics return."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, dict) else {name: value})
    return flat


def step_of(model: Any, kind: Kind) -> Callable[[Any], Any]:
    """The model's `train_step` and the like; in place of a function of TensorFlow's what it traces.

    That was traced with tensors of the step around it, which is traced again at times.
    """
    name = f"{kind}_step"
    static = inspect.getattr_static(type(model), name)
    python = getattr(static, "python_function", None)
    if python is None or name in vars(model):
        step: Callable[[Any], Any] = getattr(model, name)
        return step
    return partial(as_in_a_function(python), model)


def as_in_a_function(python: Callable[..., Any]) -> Callable[..., Any]:
    """What a `tf.function` traces of `python`: conditions and loops on tensors converted."""
    try:
        converted: Callable[..., Any] = tf.autograph.to_graph(python)
    except Exception:  # without its source, as from a prompt; a tf.function takes it as it is, too
        return python
    return converted


def step_function(model: Any, kind: Kind, plan: StepPlan) -> StepFunction:
    """The model's function for `kind`, made again where the one it has does not fit."""
    name = f"{kind}_function"
    existing = getattr(model, name)
    if isinstance(existing, StepFunction) and existing.plan == plan:
        return existing
    made = StepFunction(model, kind, plan)
    setattr(model, name, made)
    return made


# XLA has no kernel for TensorFlow's collectives on CPUs, so what compiles is the forward
# and backward pass of one replica; reduction and update follow outside. That split needs
# Keras's own `train_step`; a model with one of its own trains without XLA.

_log = logging.getLogger(__name__)


def compile_without_collectives(model: Any) -> bool:
    """Whether the model's gradients can be compiled apart; says so where they cannot."""
    if type(model).train_step is not keras.Model.train_step:
        _log.warning(
            "jit_compile=True: %s has its own train_step, which XLA cannot compile together "
            "with an all-reduce; it trains on several replicas without XLA.",
            type(model).__name__,
        )
        return False
    if syncs_batchnorm() and has_batchnorm(model):
        _log.warning(
            "jit_compile=True: XLA cannot compile BatchNormalization over the rows of all workers; "
            "%s trains on several replicas without XLA. With --no-sync-batchnorm each worker "
            "normalizes its own rows, and XLA compiles that.",
            type(model).__name__,
        )
        return False
    return True


def compiled_train_step(model: Any) -> Callable[[Any], None]:
    """Keras's `train_step` with a compiled forward and backward pass."""

    def train_step(data: Any) -> None:
        # One function a trace and replica: each captures what is its own.
        compiled = tf.function(
            lambda x, y, weight: _gradients(model, x, y, weight),
            jit_compile=True,
            autograph=False,
            reduce_retracing=True,
        )
        gradients, loss = compiled(*keras.utils.unpack_x_y_sample_weight(data))
        if (replica_batch := current_replica_batch()) is not None:
            replica_batch.loss = loss  # the recorded one lives in the compiled function
        model.optimizer.apply(gradients, model.trainable_variables)

    return train_step


def _gradients(model: Any, x: Any, y: Any, weight: Any) -> tuple[list[Any], Any]:
    replica_batch = current_replica_batch()
    looking = nullcontext() if replica_batch is None else replica_batch.looking_at((x, y, weight))
    with looking, tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = compute_loss(model, x, y, predicted, weight)
        track_loss(model, loss, x)
        scaled = model.optimizer.scale_loss(loss)
    model.compute_metrics(x, y, predicted, sample_weight=weight)
    gradients: list[Any] = tape.gradient(scaled, model.trainable_variables)
    return gradients, loss


def count_local_samples(data: Any, replica: int, replicas: int) -> tuple[Any, Any, Any, Any]:
    """(total, start, count, data) for a replica's part of a distributed dataset's element.

    An empty part gets a stand-in row of zeros; elsewhere it gets a real row.
    """
    first = next(v for v in keras.tree.flatten(data) if v is not None)
    count = tf.shape(first)[0]
    (counts,) = reduce_sum([tf.one_hot(replica, replicas, count, 0, dtype=tf.int32)])
    start = tf.reduce_sum(counts[:replica])
    return tf.reduce_sum(counts), start, count, keras.tree.map_structure(_fill, data)


def _fill(value: Any) -> Any:
    if not isinstance(value, tf.Tensor):
        return value
    missing = tf.cast(tf.shape(value)[0] == 0, tf.int32)
    return tf.pad(value, [[0, missing]] + [[0, 0]] * (value.shape.rank - 1))
