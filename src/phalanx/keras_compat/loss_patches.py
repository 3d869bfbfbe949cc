"""The one place that touches what Keras computes inside a replica's step.

Each replacement asks `current_replica_batch()` and does what Keras does when there is none, so a
step that Phalanx does not run is left alone. What is replaced, and why:

- `losses.loss.scale_loss_for_distribution` and its inverse divide by the number of
  replicas, whatever each of them holds (keras issue 19246); the share's weight does it.
- `losses.loss.reduce_values` and `apply_mask` normalise by what the replica sees; a sum,
  a mean over sample weights or over unmasked entries must see the global batch.
- `Layer.activity_regularizer` is a sum over samples in older Keras 3; likewise. Newer
  Keras divides it by the batch, and then nothing is replaced.
- `Loss.__call__` and `MeanMetricWrapper.update_state` give a function the rows of all replicas
  where its result is neither a value for each row nor a sum or mean of such values.
- `Mean.update_state` counts every value of one batch as one, whoever holds how much, and
  `Sum.update_state` adds such a value once.
- `BatchNormalization._moments` is over the rows of all replicas; see `keras_compat.batch_norm`. So
  is `_compute_moments_sync` of the backend, which `keras.ops.moments` has for
  `synchronized=True`. In a local step it gives way to `_compute_moments`.
- `Variable.assign`: a replica without samples runs on a stand-in row, and keeps the state that
  depends on its rows.
- `result` of every class of metrics: a step returns it under any name, and what it reports is
  computed from the counts of all replicas. `reset_state`: replicas without samples reset too, and
  what is counted since is added up.
- `Variable._initialize` draws an initial value, on every replica the same.
- What draws random numbers gives a replica those of its rows; see `keras_compat.random_draws`,
  and `keras_compat.constant_shapes` for shapes that name the size of the batch.
- A Jacobian of rows, and what is called for each row, stay what they are; see
  `keras_compat.row_by_row`.
- `RaggedTensor.to_tensor` pads to the longest row of all replicas; see
  `keras_compat.ragged_padding`.
- What creates an operation gives it a replica's rows of a constant that has a row for each of the
  batch; see `keras_compat.batch_constants`.
- A recurrent layer with `stateful=True` begins with a replica's rows of its state; see
  `keras_compat.recurrent_states`.

All names are guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.distributed.topology import replica_id_in_group
from phalanx.errors import ConfigurationError
from phalanx.gradients.all_reduce import reduce_sum, scale
from phalanx.gradients.graph_walk import graph_around_branches, is_in_branch, is_symbolic
from phalanx.gradients.metric_results import MetricResult
from phalanx.gradients.replica_batch import ReplicaBatch
from phalanx.gradients.step_context import current_replica_batch, current_step, step_scope
from phalanx.keras_compat.added_losses import LossesOfReplica
from phalanx.keras_compat.all_rows import over_all_rows
from phalanx.keras_compat.assignments import assignments_seen
from phalanx.keras_compat.batch_constants import (
    FUNC_GRAPH,
    own_rows_of_state,
    with_rows_of_constants,
)
from phalanx.keras_compat.batch_norm import global_moments, moments_of_layer
from phalanx.keras_compat.constant_shapes import BatchSizeInShapes, constant_shapes_by_rows
from phalanx.keras_compat.global_values import (
    is_same_on_all,
    mean_of_all_rows,
    of_all_rows,
    own_rows_before_layer,
    own_rows_of_all,
    parts_of_mixed_loss,
)
from phalanx.keras_compat.inlined_functions import FUNCTION, inlined
from phalanx.keras_compat.optimizer_patches import adds_up, in_a_plain_loop, in_many_replicas
from phalanx.keras_compat.patches import Patches
from phalanx.keras_compat.ragged_padding import ragged_padding
from phalanx.keras_compat.random_draws import ReplicaRows, draws_by_rows
from phalanx.keras_compat.recurrent_states import (
    assign_rows_of_state,
    build_for_all_rows,
    is_state,
    states_of_recurrent_layers,
)
from phalanx.keras_compat.row_by_row import row_by_row


def _replica_batch_of_many() -> ReplicaBatch | None:
    return current_replica_batch() if in_many_replicas() else None


def _replica_of_process() -> int:
    if not in_many_replicas() or isinstance(tf.distribute.get_strategy(), MultiWorkerStrategy):
        return 0
    return replica_id_in_group()


def _share_to_add_up() -> ReplicaBatch | None:
    """The share where losses are parts of a global one, which they are not in a local step."""
    return current_replica_batch() if adds_up() else None


def backend_nn() -> Any:
    """The module of Keras's TensorFlow backend that has `moments`; Keras 3.16 moved it."""
    backend = importlib.import_module("keras.src.backend")
    return backend.nn if hasattr(backend, "nn") else importlib.import_module(_NN_OF_KERAS_3_16)


_NN_OF_KERAS_3_16 = "keras.src.backend.tensorflow.ops.nn"


def _replacements() -> Mapping[tuple[Any, str], Any]:
    losses = importlib.import_module("keras.src.losses.loss")
    nn = backend_nn()
    replacements: dict[tuple[Any, str], Any] = {
        (losses, "scale_loss_for_distribution"): _unless_shared(losses.scale_loss_for_distribution),
        (losses, "unscale_loss_for_distribution"): _unless_shared(
            losses.unscale_loss_for_distribution
        ),
        (losses, "reduce_values"): _global_reduce_values(losses.reduce_values),
        (losses, "apply_mask"): _global_apply_mask(losses.apply_mask),
        (nn, "_compute_moments_sync"): _global_moments(
            nn._compute_moments_sync, nn._compute_moments
        ),
        (keras.layers.BatchNormalization, "_moments"): moments_of_layer(
            keras.layers.BatchNormalization._moments, _share_to_add_up
        ),
        (keras.Loss, "__call__"): over_all_rows(keras.Loss.__call__, "call", _share_to_add_up),
        (keras.metrics.MeanMetricWrapper, "update_state"): over_all_rows(
            keras.metrics.MeanMetricWrapper.update_state, "_fn", _share_to_add_up
        ),
        (keras.metrics.Mean, "update_state"): _weighted_mean(keras.metrics.Mean.update_state),
        (keras.metrics.Sum, "update_state"): _weighted_sum(keras.metrics.Sum.update_state),
        (tf.GradientTape, "gradient"): _gradient_of_sums(tf.GradientTape.gradient),
        **row_by_row(_replica_batch_of_many),
        **ragged_padding(_replica_batch_of_many),
        **states_of_recurrent_layers(_replica_batch_of_many),
        (keras.Variable, "assign"): _assign_unless_empty(keras.Variable.assign),
        (keras.Variable, "_initialize"): _outside_of_steps(keras.Variable._initialize),
        (keras.Layer, "__call__"): _given_own_rows(keras.Layer.__call__),
        (keras.Layer, "_losses"): LossesOfReplica(_replica_of_process),
        (FUNC_GRAPH, "_create_op_internal"): with_rows_of_constants(
            FUNC_GRAPH._create_op_internal, _replica_batch_of_many
        ),
        (FUNCTION, "__call__"): inlined(lambda: _replica_batch_of_many() is not None),
        **assignments_seen(_look_for_gradients, _for_raw_variable),
        **draws_by_rows(_rows_of_share, _draw_counter, lambda: current_replica_batch() is not None),
        **constant_shapes_by_rows(_constants_of_share),
    }
    if "batch_size" not in inspect.getsource(keras.layers.Layer.__call__):
        replacements[keras.layers.Layer, "activity_regularizer"] = _ActivityRegularizer()
    return replacements


def _given_own_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica_batch = _replica_batch_of_many() if args else None
        if replica_batch is not None:
            build_for_all_rows(replica_batch, self, args[0])
        if replica_batch is not None and adds_up() and not tf.executing_eagerly():
            args = (own_rows_before_layer(replica_batch, args[0]), *args[1:])
            if isinstance(self, keras.layers.RNN):
                args, kwargs = _with_own_state(replica_batch, args, kwargs)
        return original(self, *args, **kwargs)

    return call


def _with_own_state(replica_batch: ReplicaBatch, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a recurrent layer, the initial state with this replica's rows."""
    if len(args) > 1:
        return (args[0], own_rows_of_state(replica_batch, args[0], args[1]), *args[2:]), kwargs
    state = kwargs.get("initial_state")
    if state is not None:
        kwargs = kwargs | {"initial_state": own_rows_of_state(replica_batch, args[0], state)}
    return args, kwargs


def _unless_shared(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def scaled(value: Any) -> Any:
        whole = _replica_batch_of_many() is not None or in_a_plain_loop()
        return value if whole else original(value)

    return scaled


def _global_reduce_values(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_values(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
    ) -> Any:
        replica_batch = _replica_batch_of_many()
        if replica_batch is None or tuple(values.shape) == ():
            return original(values, sample_weight, reduction)
        if adds_up():
            reduced = for_replica_batch(replica_batch, values, sample_weight, reduction)
            replica_batch.row_sums.take_for_mean(reduced)
            return reduced
        reduced = original(values, sample_weight, reduction)
        if reduction in ("mean", "sum_over_batch_size", "mean_with_sample_weight"):
            replica_batch.row_sums.take_for_mean(reduced)  # though its divisor may be a constant
        return reduced

    def for_replica_batch(
        replica_batch: ReplicaBatch, values: Any, sample_weight: Any, reduction: Any
    ) -> Any:
        if reduction == "sum" and not replica_batch.row_sums.is_gathered(values):
            return tf.reduce_sum(values) * replica_batch.inverse_weight(values.dtype)
        weights = None
        if reduction == "mean_with_sample_weight":
            weights = sample_weight
        elif reduction in ("mean", "sum_over_batch_size") and replica_batch.row_sums.selects(
            values
        ):
            weights = tf.ones_like(values)
        if weights is not None:
            divisor = replica_batch.over_replicas(tf.reduce_sum(weights))
            total = tf.reduce_sum(values) * replica_batch.inverse_weight(values.dtype)
            return tf.math.divide_no_nan(total, tf.cast(divisor, total.dtype))
        return original(values, sample_weight, reduction)

    return reduce_values


def _global_apply_mask(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_mask(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        replica_batch = _share_to_add_up()
        if (
            replica_batch is None
            or mask is None
            or reduction not in ("mean", "sum_over_batch_size")
        ):
            return original(sample_weight, mask, dtype, reduction)
        # Keras spreads size / valid over the valid entries; both are the replica's own.
        local_valid = tf.reduce_sum(tf.cast(mask, dtype))
        global_valid = replica_batch.over_replicas(local_valid)
        correction = tf.math.divide_no_nan(
            local_valid * replica_batch.inverse_weight(dtype), tf.cast(global_valid, dtype)
        )
        weighted = original(sample_weight, mask, dtype, reduction)
        return weighted * correction

    return apply_mask


def _global_moments(original: Callable[..., Any], local: Callable[..., Any]) -> Callable[..., Any]:
    def moments(x: Any, axes: Any, keepdims: bool) -> Any:
        replica_batch = _share_to_add_up()
        if replica_batch is None:
            is_local = _replica_batch_of_many() is not None
            return (local if is_local else original)(x, axes, keepdims)
        return global_moments(replica_batch, x, axes, keepdims=keepdims)

    return moments


def _weighted_mean(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        replica_batch = _replica_batch_of_many()
        if replica_batch is not None and len(getattr(values, "shape", ())) == 0:
            values = mean_of_all_rows(replica_batch, values)
            if sample_weight is None:
                # One number a batch: on one device a batch counts 1, so together they do here.
                sample_weight = replica_batch.weight
        return original(self, values, sample_weight)

    return update_state


def _weighted_sum(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        replica_batch = _replica_batch_of_many()
        is_number = len(getattr(values, "shape", ())) == 0 and not isinstance(values, (list, tuple))
        if replica_batch is not None and is_number and sample_weight is None:
            if _is_count_of_rows(replica_batch, values):  # all replicas' make that of the batch
                present = tf.cast(replica_batch.count > 0, tf.float32)
                return original(self, values, present)
            # One number a batch: each replica adds its part of it.
            values, sample_weight = mean_of_all_rows(replica_batch, values), replica_batch.weight
        return original(self, values, sample_weight)

    return update_state


def _is_count_of_rows(replica_batch: ReplicaBatch, value: Any) -> bool:
    """Whether a scalar of the step is a whole number that depends on the batch."""
    while is_symbolic(value) and value.op.type == "Cast":
        value = value.op.inputs[0]
    if not isinstance(value, tf.Tensor) or not value.dtype.is_integer:
        return False
    return replica_batch.row_sums.depends_on_batch(value)


def _subclasses(kind: Any) -> Iterator[Any]:
    one: Any
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _noted_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        if (replica_batch := current_replica_batch()) is not None:
            replica_batch.record_result(value, MetricResult(self))
        return value

    return result


def _reset_on_all(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reset_state(self: Any) -> None:
        replica_batch = current_replica_batch()
        with step_scope(replica_batch=None):  # a replica without samples resets it too
            original(self)
        if replica_batch is None:
            return
        for variable in self.variables:
            if is_in_branch():
                replica_batch.reset_in_branch[id(variable)] = tf.compat.v1.get_default_graph()
            if id(variable) in replica_batch.before:
                replica_batch.before[id(variable)] = _value_before(replica_batch, variable)

    return reset_state


def _updated_by_own_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (replica_batch := _share_to_add_up()) is not None and not tf.executing_eagerly():
            given = own_rows_of_all(replica_batch, [*args, *kwargs.values()])
            args = tuple(given[: len(args)])
            kwargs = dict(zip(kwargs, given[len(args) :], strict=True))
        return original(self, *args, **kwargs)

    return update_state


def _value_before(replica_batch: ReplicaBatch, variable: Any) -> Any:
    """The value that a variable has before what is traced, or the branch that it is in."""
    if not is_in_branch():
        return tf.identity(variable.value)
    if replica_batch.reset_in_branch.get(id(variable)) is tf.compat.v1.get_default_graph():
        raise ConfigurationError(
            f"Asked to reset {variable.path} and to update it in one branch of a step of "
            "distribute_step, where workers cannot know what they have counted since. Reset the "
            "metric outside of the condition, or before the step is called."
        )
    with graph_around_branches().as_default():
        return tf.identity(variable.value)


def _gradient_of_sums(original: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        replica_batch = _share_to_add_up()
        if replica_batch is None or replica_batch.is_by_row:
            return original(self, target, sources, output_gradients, *args, **kwargs)
        tapes, of_variables = replica_batch.tape_gradients, _are_variables(sources)
        are_added_up = of_variables and replica_batch.in_own_strategy()
        if are_added_up:
            tapes.take_used(target)
        are_totals = are_added_up and tapes.are_totals
        is_weighed = replica_batch.any_loss_is_weighted
        is_known = of_variables or _have_rows(replica_batch, sources)
        carries_weight = False
        if is_known and output_gradients is None:
            is_mean = of_variables and (is_weighed or not are_totals)
            adds_weight = is_mean and not is_weighed
            known = [
                (of_variables and parts_of_mixed_loss(replica_batch, one, is_mean=adds_weight))
                or _split(replica_batch, one, is_mean=is_mean)
                for one in tf.nest.flatten(target)
            ]
            target = [one for targets, _ in known for one in targets]
            output_gradients = [one for _, factors in known for one in factors]
            is_weighed, carries_weight = True, not is_mean
        with replica_batch.backward(is_weighed=carries_weight):
            gradients = original(self, target, sources, output_gradients, *args, **kwargs)
        if are_totals:
            own = tf.nest.flatten(gradients)
            own = own if is_weighed else scale(own, replica_batch.weight)
            totals = reduce_sum(own, what="gradients")
            gradients = tf.nest.pack_sequence_as(gradients, totals)
        if are_added_up:
            tapes.record(gradients)
        return gradients

    return gradient


def _look_for_gradients(assigned: Any) -> None:
    replica_batch = _share_to_add_up()
    if replica_batch is not None and replica_batch.in_own_strategy():
        replica_batch.tape_gradients.take_used(assigned)


def _for_raw_variable(variable: Any, values: Sequence[Any]) -> Sequence[Any]:
    replica_batch = _share_to_add_up()
    if replica_batch is None or current_step().applies_total:
        return values
    return of_all_rows(replica_batch, variable, values)


def _are_variables(sources: Any) -> bool:
    flat = tf.nest.flatten(sources)
    return bool(flat) and all(isinstance(v, (tf.Variable, keras.Variable)) for v in flat)


def _have_rows(replica_batch: ReplicaBatch, sources: Any) -> bool:
    flat = tf.nest.flatten(sources)
    return bool(flat) and all(map(replica_batch.row_sums.is_of_rows, flat))


def _split(
    replica_batch: ReplicaBatch, target: Any, *, is_mean: bool
) -> tuple[list[Any], list[Any]]:
    """Targets and factors, whose gradients are a replica's part of those of the global target.

    The gradient of a target that is no scalar is that of its sum.

    Args:
        replica_batch: the replica's share.
        target: what is differentiated.
        is_mean: whether the parts are weighed by their samples and added up, as optimizers do.
            Else they are added up as they are: the weight is there before the backward pass, which
            may cross replicas. So it is for rows: a row's part of a mean over the batch is one of
            all rows.
    """
    one = tf.ones_like(target)
    of_whole = one if is_mean else one * tf.cast(replica_batch.weight, target.dtype)
    if target.shape.rank:
        if replica_batch.row_sums.is_gathered(target):
            return [target], [of_whole]
        return [target], [one * replica_batch.inverse_weight(target.dtype) if is_mean else one]
    parts = replica_batch.parts(target, is_mean=is_mean)
    if parts is None:
        return [target], [of_whole]
    return [value for value, _ in parts], [tf.cast(factor, v.dtype) for v, factor in parts]


class _ActivityRegularizer:
    """`Layer.activity_regularizer`, which in a step speaks for the global batch."""

    def __get__(self, layer: Any, owner: Any = None) -> Any:
        if layer is None:
            return self
        regularizer = vars(layer).get("activity_regularizer")
        replica_batch = _share_to_add_up()
        if regularizer is None or replica_batch is None:
            return regularizer
        return lambda x: (lambda loss: loss * replica_batch.inverse_weight(loss.dtype))(
            regularizer(x)
        )

    def __set__(self, layer: Any, regularizer: Any) -> None:
        vars(layer)["activity_regularizer"] = regularizer


def _assign_unless_empty(original: Callable[..., Any]) -> Callable[..., Any]:
    def assign(self: Any, value: Any) -> Any:
        replica_batch = current_replica_batch()
        if replica_batch is None or current_step().applies_total:
            return original(self, value)
        if is_state(replica_batch, self):
            assign_rows_of_state(replica_batch, self, value)
            return value
        _look_for_gradients(value)  # replicas of one process may merge it, elsewhere than here
        if id(self) not in replica_batch.assigned:
            replica_batch.assigned[id(self)] = self
            if replica_batch.wants_before:
                replica_batch.before[id(self)] = _value_before(replica_batch, self)
        if adds_up():
            (value,) = of_all_rows(replica_batch, self, (value,))
        if (
            in_many_replicas()
            and replica_batch.may_be_empty
            and not _is_same_on_all(replica_batch, self, value)
        ):
            value = tf.where(replica_batch.count > 0, tf.cast(value, self.value.dtype), self.value)
        return original(self, value)

    return assign


def _is_same_on_all(replica_batch: ReplicaBatch, variable: Any, value: Any) -> bool:
    """Whether replicas assign a variable the same value, so that one without samples does too.

    A counter, an average of weights, weights that the step clips: they must not stay behind. A
    metric counts a replica's own rows.
    """
    if replica_batch.is_replica_invariant(variable):
        return True
    if tf.executing_eagerly() or variable.aggregation == "sum":
        return False
    return is_same_on_all(replica_batch, tf.convert_to_tensor(value))


def _outside_of_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(self: Any, value: Any) -> Any:
        with step_scope(replica_batch=None):
            return original(self, value)

    return initialize


def _draw_counter(seeds: tuple[int, int]) -> Any:
    replica_batch = current_replica_batch()
    return (
        None
        if replica_batch is None or replica_batch.draw_counter is None
        else replica_batch.draw_counter(seeds)
    )


def _rows_of_share() -> ReplicaRows | None:
    replica_batch = _replica_batch_of_many()
    if replica_batch is None or not replica_batch.is_within_reach():
        return None
    context = tf.distribute.get_replica_context()
    return ReplicaRows(
        start=replica_batch.start,
        own_rows=replica_batch.own_rows,
        total=replica_batch.total,
        static_count=replica_batch.static_count,
        replica=context.replica_id_in_sync_group,
        fewer=replica_batch.rows_of_tensors[1:] if replica_batch.in_own_strategy() else (),
    )


def _constants_of_share() -> tuple[ReplicaRows, BatchSizeInShapes] | None:
    replica_batch = _replica_batch_of_many()
    constants: BatchSizeInShapes | None = (
        None if replica_batch is None else replica_batch.batch_size_in_shapes
    )
    rows = None if constants is None else _rows_of_share()
    return None if constants is None or rows is None else (rows, constants)


def _result_replacements() -> Mapping[tuple[Any, str], Any]:
    noted = {
        "result": _noted_result,
        "reset_state": _reset_on_all,
        "update_state": _updated_by_own_rows,
    }
    return {
        (kind, name): note(vars(kind)[name])
        for kind in (keras.Metric, *_subclasses(keras.Metric))
        for name, note in noted.items()
        if inspect.isfunction(vars(kind).get(name))
    }


results_are_noted = Patches(_result_replacements)
"""Enter it for one step, which then knows what metrics reported in it, and which were reset.

The classes are looked up on entry: a script may define its own after Phalanx was enabled.
"""

weighted_loss_patch = Patches(_replacements)
"""Enter it, and what Keras computes in a step of ours is right for the global batch."""
