"""What Phalanx needs of a Keras model beyond its public methods.

Private names used: `Model._symbolic_build` (build a model that waits for its first
batch), `Model._distribute_strategy`, `Model._flatten_metrics_in_order`,
`Model._initial_epoch`, `Model._should_eval`, `Model._assert_compile_called`,
`Model._compute_loss`, `Model._loss_tracker`, `Model._flatten_layers`, `Sequential._layers`,
`Variable._value`, `Optimizer._distribution_strategy`, `Optimizer._learning_rate`,
`Optimizer._trainable_variables_indices`, `Optimizer._var_key`, `Optimizer._iterations`,
`MultiOptimizer._var_to_optimizer_idx`, and `potentially_ragged_concat` of the TensorFlow
backend's trainer.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.keras_compat.optimizer_clippers import optimizers_in, parts_of

_REPLICATES = (tf.distribute.MirroredStrategy, tf.distribute.TPUStrategy)
"""Strategies whose variables are replicated, be it over a single replica."""


def replicates_variables(strategy: tf.distribute.Strategy) -> bool:
    """Whether variables that are made under `strategy` are replicated.

    Replicas must not create such variables, so what trains under them is built before. Plain
    variables are made when and as Keras makes them on one device.
    """
    if isinstance(strategy, MultiWorkerStrategy):
        return False
    return isinstance(strategy, _REPLICATES) or strategy.num_replicas_in_sync > 1


def strategy_of(model: Any) -> tf.distribute.Strategy:
    """The strategy `model` is to train under: the one it was made in, else the current one.

    A model made in a strategy of one replica moves to a current one of several.
    """
    made_in = getattr(model, "_distribute_strategy", None)
    current = tf.distribute.get_strategy()
    if made_in is None or made_in.num_replicas_in_sync < current.num_replicas_in_sync:
        return current
    return made_in


@contextlib.contextmanager
def without_strategy(model: Any) -> Iterator[None]:
    """Let `model` belong to no strategy meanwhile; its variables must be plain ones."""
    made_in, functions = model._distribute_strategy, (model.test_function, model.predict_function)
    model._distribute_strategy = None
    model.test_function = model.predict_function = None
    try:
        yield
    finally:
        model._distribute_strategy = made_in
        model.test_function, model.predict_function = functions


def adopt(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Move what was created outside `strategy`'s scope into it, values and all.

    A model or optimizer made before or next to the scope owns plain variables, which
    TensorFlow refuses to mix with replicated ones ("Mixing different
    tf.distribute.Strategy objects"). The Keras variables stay the same objects. A strategy of one
    replica owns its variables too. Plain variables stay where a strategy has plain ones. Call it
    in `strategy`'s scope.
    """
    if strategy.num_replicas_in_sync == 1 and not tf.distribute.has_strategy():
        return
    model._distribute_strategy = strategy
    moved = _move([*model.variables, *_metric_variables(model)], strategy)
    for optimizer in optimizers_in(getattr(model, "optimizer", None)):
        adopt_optimizer(optimizer, strategy, variables_moved=moved)
    if moved:
        model.train_function = model.test_function = model.predict_function = None


def adopt_optimizer(
    optimizer: Any, strategy: tf.distribute.Strategy, *, variables_moved: bool = False
) -> None:
    """Move an optimizer's variables into `strategy`, and let it know them again."""
    moved = _move(optimizer._variables, strategy)
    optimizer._distribution_strategy = strategy
    if (moved or variables_moved) and optimizer.built:
        optimizer._trainable_variables_indices = {
            optimizer._var_key(v): i for i, v in enumerate(optimizer._trainable_variables)
        }
        if parts_of(optimizer):  # in the order of the variables, too
            optimizer._var_to_optimizer_idx = dict(
                zip(
                    optimizer._trainable_variables_indices,
                    optimizer._var_to_optimizer_idx.values(),
                    strict=True,
                )
            )


def build(
    model: Any, element_spec: Any, strategy: tf.distribute.Strategy, static_spec: Any = None
) -> None:
    """Create what `model` and its optimizer create lazily, by Keras's symbolic build.

    Args:
        model: a compiled model.
        element_spec: shapes and dtypes of one batch: `(x,)`, `(x, y)` or
            `(x, y, sample_weight)`, batch dimension None.
        strategy: the strategy to build under.
        static_spec: the same with the number of rows, for a model that needs it in Python; None
            where batches differ.
    """
    with strategy.scope():
        take_back = sequentials_to_build(model)
        try:
            model._symbolic_build(data_batch=element_spec)
        except Exception:  # whatever a layer does with a size that is None
            if static_spec is None:
                raise
            take_back()
            model._symbolic_build(data_batch=static_spec)


def sequentials_to_build(model: Any) -> Callable[[], None]:
    """A function that undoes what a failed build has left in each `keras.Sequential` of `model`.

    One that fails keeps the shape that it was to be built for, and rejects another
    (`Sequential.build`).
    """
    layers = model._flatten_layers()
    unbuilt = [one for one in layers if isinstance(one, keras.Sequential) and not one.built]
    before = [list(one._layers) for one in unbuilt]

    def take_back() -> None:
        for one, own in zip(unbuilt, before, strict=True):
            if not one.built:
                one._layers = list(own)

    return take_back


def stateful_layers(model: Any) -> list[str]:
    """The names of recurrent layers that keep a state for each row of the batch."""
    kinds = (keras.layers.RNN, keras.layers.Bidirectional)
    layers = model._flatten_layers()
    return [layer.name for layer in layers if isinstance(layer, kinds) and layer.stateful]


def recurrent_states(model: Any) -> list[Any]:
    """The states of recurrent layers with `stateful=True`, which `model.variables` leaves out."""
    layers = [one for one in model._flatten_layers() if isinstance(one, keras.layers.RNN)]
    kept = [layer.states for layer in layers if layer.stateful and layer.states is not None]
    return list(keras.tree.flatten(kept))


def ordered_metrics(model: Any, logs: dict[str, float]) -> Any:
    """`evaluate`'s answer without `return_dict`: the values, in Keras's order."""
    return model._flatten_metrics_in_order(logs)


def assert_compiled(model: Any, method: str) -> None:
    """Raise Keras's own error when `model` was not compiled."""
    model._assert_compile_called(method)


def first_epoch(model: Any, initial_epoch: int) -> int:
    """The epoch to start from: what BackupAndRestore set on the model, else `initial_epoch`."""
    return int(model._initial_epoch or initial_epoch)


def set_first_epoch(model: Any, epoch: int) -> None:
    """Set on the model where to start, as BackupAndRestore does."""
    model._initial_epoch = epoch or None


def settable_learning_rates(optimizer: Any) -> list[Any]:
    """The learning rates that a callback can set: variables, not schedules."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    inner = getattr(optimizer, "optimizers", None) or [optimizer]
    rates = [getattr(one, "_learning_rate", None) for one in inner]
    return [rate for rate in rates if isinstance(rate, keras.Variable)]


def steps_trained(model: Any) -> int:
    """The steps that the model's optimizer has counted so far, accumulating ones too."""
    optimizer: Any = getattr(model, "optimizer", None)
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    counter = getattr(optimizer, "_iterations", None)
    return 0 if counter is None else int(counter.numpy())


def loss_scale_of(model: Any, read: Callable[[Any], Any] = keras.ops.convert_to_numpy) -> float:
    """The factor that the model's optimizer puts on the loss.

    Args:
        model: the model.
        read: reads it where it is a Keras variable.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    scale = getattr(optimizer, "dynamic_scale", None)
    if scale is None:
        scale = getattr(optimizer, "loss_scale_factor", None)
    if scale is None:
        return 1.0
    return float(read(scale) if isinstance(scale, keras.Variable) else scale)


def set_loss_scale(model: Any, scale: float) -> None:
    """Have the model's optimizer scale the loss by `scale`, if it is one that scales."""
    optimizer: Any = getattr(model, "optimizer", None)
    if hasattr(optimizer, "dynamic_scale"):
        optimizer.dynamic_scale.assign(scale)
    elif isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.initial_scale = scale


def is_validation_epoch(model: Any, epoch: int, validation_freq: Any) -> bool:
    """Whether `epoch` (from 0) ends with a validation."""
    return bool(model._should_eval(epoch, validation_freq))


def has_own_function(model: Any, kind: str) -> bool:
    """Whether the user overrode `make_train_function` (or test, predict)."""
    name = f"make_{kind}_function"
    return getattr(type(model), name) is not getattr(keras.Model, name)


def has_own_evaluate(model: Any) -> bool:
    """Whether the user overrode `evaluate`, which Keras's `fit` calls to validate."""
    known = (keras.Model.evaluate, keras_trainer().evaluate)
    return "evaluate" in vars(model) or type(model).evaluate not in known


def has_own_step(model: Any, kind: str) -> bool:
    """Whether the user overrode `train_step` (or test, predict)."""
    name = f"{kind}_step"
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)


def has_own_apply(optimizer: Any) -> bool:
    """Whether an optimizer's class, of the script's own, overrides `apply`."""
    kinds = type(optimizer).__mro__
    return any("apply" in vars(k) and k.__module__.split(".")[0] != "keras" for k in kinds)


def has_batchnorm(model: Any) -> bool:
    """Whether a layer of the model is a BatchNormalization that learns its statistics."""
    return any(
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        for layer in model._flatten_layers()
    )


def _metric_variables(model: Any) -> list[Any]:
    return [variable for metric in model.metrics for variable in metric.variables]


def _move(variables: Iterable[Any], strategy: tf.distribute.Strategy) -> bool:
    moved = False
    for variable in {id(v): v for v in variables}.values():
        value = getattr(variable, "_value", None)
        if value is None or not _is_of_another(value, strategy):
            continue
        with strategy.scope():
            variable._value = tf.Variable(
                value.numpy(),
                dtype=value.dtype,
                trainable=variable.trainable,
                name=variable.name,
                aggregation=variable._map_aggregation(variable.aggregation),
                synchronization=variable._map_synchronization(variable.synchronization),
            )
        moved = True
    return moved


def _is_of_another(value: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether a TensorFlow variable has to be created again under `strategy`."""
    owner = getattr(value, "_distribute_strategy", None)
    if owner is None:
        return not isinstance(strategy, MultiWorkerStrategy)
    return owner is not strategy and owner.num_replicas_in_sync == 1


def compute_loss(model: Any, x: Any, y: Any, predicted: Any, weight: Any) -> Any:
    """The training loss, through the user's `compute_loss` where there is one."""
    return model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=True)


def track_loss(model: Any, loss: Any, x: Any) -> None:
    """Add a batch's mean loss to the model's `loss` metric, weighted by its samples."""
    rows = tf.shape(next(i for i in keras.tree.flatten(x) if i is not None))[0]
    model._loss_tracker.update_state(loss, sample_weight=rows)


def keras_predict(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Keras's own `predict`, whatever `keras.Model.predict` is now."""
    return keras_trainer().predict(model, *args, **kwargs)


def keras_predict_on_batch(model: Any, x: Any) -> Any:
    """Keras's own `predict_on_batch`, whatever `keras.Model.predict_on_batch` is now."""
    return keras_trainer().predict_on_batch(model, x)


def concat_batches(batches: Sequence[Any]) -> Any:
    """The arrays that a model gave for some batches, put together as Keras's `predict` does.

    Returns:
        A NumPy array; a RaggedTensor where they differ in another axis than the first.
    """
    trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
    with tf.device("CPU:0"):  # they come from the host and go there
        whole = trainer.potentially_ragged_concat([tf.convert_to_tensor(b) for b in batches])
    return whole if isinstance(whole, tf.RaggedTensor) else whole.numpy()


def class_weights_of(y: Any, class_weight: dict[int, float]) -> Any:
    """One sample weight for each class in `y`."""
    utils = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
    return utils.class_weight_to_sample_weights(y, class_weight)


def keras_trainer() -> Any:
    """The class of Keras's backend from which every model has `fit`, `evaluate` and `predict`."""
    return next(owner for owner in keras.Model.__mro__[1:] if "predict" in vars(owner))
