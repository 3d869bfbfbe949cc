"""How a Keras optimizer updates variables that parameter servers keep.

Keras reads a variable and its slots, computes, and assigns. Here each shard's update runs on
the server that has it, so that gradients alone go over the network. It is Keras's own
`update_step`: while it runs for a shard, the optimizer's slots are their shards too.

Private names used: `Optimizer._backend_apply_gradients`, `_backend_update_step`, `_clip_gradients`,
`_use_weight_decay`, `_trainable_variables_indices`, `_get_variable_index`, `_var_key`,
`_variables`, `_iterations`, `Variable._value`, `Variable._shape`; guarded by
tests/parameter_server/test_server_canaries.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.gradients.comm_timer import now
from phalanx.keras_compat.graph_ops import ops_created_by_caller
from phalanx.keras_compat.optimizer_clippers import clippers_of, innermost
from phalanx.keras_compat.patches import Patches
from phalanx.keras_compat.ps_ema import move_averages
from phalanx.keras_compat.ps_variables import in_step_on_servers, is_sharded, shards_of, value_of

_Optimizer = keras.optimizers.Optimizer
_thread = threading.local()

ROW_BY_ROW = (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "RMSprop", "SGD",
)  # fmt: skip
"""Optimizers whose update of a row needs that row alone, so that a shard can do without others."""

_NOT_TOGETHER = {
    "gradient_accumulation_steps": "Take larger batches, or more workers, in its place.",
    "ema_overwrite_frequency": "Leave it out: the averages are taken where training ends.",
}


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A shard of a variable, or all of it: `held` by one server, with its gradient."""

    variable: Any
    held: Any
    shard: int
    gradient: Any


def check_optimizer(optimizer: Any) -> None:
    """Refuse what cannot be right where workers train each at its own pace.

    Raises:
        ConfigurationError: says what, and what to do.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigurationError(
            f"Asked to train under parameter-server with {name}, whose scale all workers would "
            "change at once. Train in float32 or bfloat16."
        )
    if type(optimizer)._backend_update_step is not _Optimizer._backend_update_step:
        raise ConfigurationError(
            f"Asked to train under parameter-server with {name}, which keeps a state of all "
            f"variables together that workers would change at once. Use {', '.join(ROW_BY_ROW)}."
        )
    for option, advice in _NOT_TOGETHER.items():
        if value := getattr(optimizer, option, None):
            raise ConfigurationError(
                f"Asked to train under parameter-server with {option}={value}, which several "
                f"workers would change at once. {advice}"
            )


def check_shards(optimizer: Any, variables: Sequence[Any]) -> None:
    """Refuse variables in shards where the optimizer must see them whole.

    Raises:
        ConfigurationError: says which, and what to do.
    """
    sharded = [v for v in variables if is_sharded(v)]
    if not sharded:
        return
    kinds = tuple(getattr(keras.optimizers, name) for name in ROW_BY_ROW)
    if not isinstance(optimizer, kinds) or clippers_of(optimizer) is not None:
        what = "Phalanx's clippers" if clippers_of(optimizer) else type(optimizer).__name__
        raise ConfigurationError(
            f"{sharded[0].path} is cut into {len(shards_of(sharded[0]))} shards, and {what} must "
            "see a variable whole. Use --variable-partitioner none, or another optimizer."
        )


@contextlib.contextmanager
def recording_updates() -> Iterator[list[Any]]:
    """Note the optimizer's count when a gradient is there, its norm, and the time."""
    _thread.notes = []
    try:
        yield _thread.notes
    finally:
        _thread.notes = None


def _replacements() -> Mapping[tuple[Any, str], Any]:
    return {
        (_Optimizer, "_backend_apply_gradients"): _apply(_Optimizer._backend_apply_gradients),
    }


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    def backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> Any:
        if not in_step_on_servers():
            return original(self, grads, trainable_variables)
        pieces = _pieces(grads, trainable_variables)
        gradients = _clip(self, pieces)
        _note(self, [piece.gradient for piece in pieces])
        for piece, gradient in zip(pieces, gradients, strict=True):
            with variable_lock(piece.held, gradient) as own:
                _update(self, piece, own)
        move_averages(self, trainable_variables)
        return None

    return backend_apply_gradients


def _pieces(gradients: Sequence[Any], variables: Sequence[Any]) -> list[_Piece]:
    return [
        _Piece(variable=variable, held=held, shard=shard, gradient=part)
        for variable, gradient in zip(variables, gradients, strict=True)
        for shard, (held, part) in enumerate(
            zip(
                shards_of(variable),
                gradient if is_sharded(variable) else [gradient],
                strict=True,
            )
        )
    ]


def _clip(optimizer: Any, pieces: Sequence[_Piece]) -> list[Any]:
    """What the optimizer would clip, each variable by the norm of all of its shards."""
    gradients = [piece.gradient for piece in pieces]
    norm = optimizer.clipnorm
    if not norm or not any(is_sharded(piece.variable) for piece in pieces):
        return list(optimizer._clip_gradients(gradients))
    squares: dict[int, Any] = {}
    for piece in pieces:
        own = tf.reduce_sum(tf.square(_values(piece.gradient)))
        squares[id(piece.variable)] = squares.get(id(piece.variable), 0.0) + own
    return [
        _scaled(p.gradient, norm / tf.maximum(tf.sqrt(squares[id(p.variable)]), norm))
        for p in pieces
    ]


def _values(gradient: Any) -> Any:
    """What Keras takes norms of: a row that comes twice counts twice."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _scaled(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _note(optimizer: Any, gradients: Sequence[Any]) -> None:
    notes = getattr(_thread, "notes", None)
    if notes is not None:
        there = [_values(gradient) for gradient in gradients]
        with tf.control_dependencies(there):
            count, at = tf.identity(value_of(innermost(optimizer)._iterations)), now()
        notes.extend([count, tf.linalg.global_norm(there), at])


def _update(optimizer: Any, piece: _Piece, gradient: Any) -> None:
    held, indices = piece.held, optimizer._trainable_variables_indices
    indices[optimizer._var_key(held)] = optimizer._get_variable_index(piece.variable)
    rate = tf.cast(optimizer.learning_rate, held.dtype)
    if optimizer.weight_decay is not None and optimizer._use_weight_decay(piece.variable):
        held.assign_sub(held * tf.cast(optimizer.weight_decay, held.dtype) * rate)
    with _slots_are_shards(optimizer, piece):
        optimizer.update_step(gradient, held, rate)


@contextlib.contextmanager
def _slots_are_shards(optimizer: Any, piece: _Piece) -> Iterator[None]:
    """Let the slots of a variable in shards be those of one shard."""
    slots = [v for v in optimizer._variables if is_sharded(v)] if is_sharded(piece.variable) else []
    whole = [(slot, slot._value, slot._shape) for slot in slots]
    try:
        for slot, value, _ in whole:
            if piece.shard < len(value.variables):
                slot._value = value.variables[piece.shard]
                slot._shape = tuple(slot._value.shape)
        yield
    finally:
        for slot, value, shape in whole:
            slot._value, slot._shape = value, shape


updates_on_servers = Patches(_replacements)
"""Enter it, and Keras's optimizers update on the servers; elsewhere nothing changes."""


# An update reads a variable's slots one after the other, computes, and writes them one after the
# other. Were two workers at it at once, one could see the other's half: Adam's new momentum next to
# the old velocity of zero, whose quotient throws a row far away, from where it needs epochs to come
# back. (Keras writes m, v and the variable by operations of their own; TensorFlow's
# `ResourceApplyAdam`, which does all in one, is not what `keras.optimizers.Adam` calls.)


@contextlib.contextmanager
def variable_lock(held: Any, gradient: Any) -> Iterator[Any]:
    """In a graph: no other process updates `held` and its slots while the operations made here run.

    The turn begins when the gradient has reached the server, and all that is done in it is done
    there, so no worker waits for one that dies. A worker waits for one turn at a time:
    none for another's end while it has one.

    Args:
        held: a variable on a server, or its shard.
        gradient: its gradient, a tensor or `tf.IndexedSlices`.

    Yields:
        The gradient, on the server.
    """
    with tf.device(held.device):
        here = tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
        mutex = tf.raw_ops.MutexV2(shared_name=f"phalanx/turn/{held.name}")
        with tf.control_dependencies(tf.nest.flatten(here, expand_composites=True)):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        made = ops_created_by_caller(lock.graph)
        with tf.control_dependencies([lock]):
            yield here
        with tf.control_dependencies(made()):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
