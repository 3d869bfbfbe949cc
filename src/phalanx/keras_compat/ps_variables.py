"""Keras's variables where parameter servers keep them: atomic counts, shards, sparse reads.

Workers train each at its own pace, so what one of them reads another may change before it
writes. What is replaced, in the steps of phalanx/training/parameter_server alone:

- `Variable.assign_add` and `assign_sub` read, add and assign (keras issue 18624): counts get
  lost. TensorFlow's own `assign_add` is atomic on the server.
- `GradientTape.gradient` knows no variable that is cut into shards; it is asked for the shards.
- `Embedding.call` reads the whole table; the server is asked for the rows.

And everywhere:

- `Variable.__array__`: saving asks for a variable as an array, which one in shards is not.
- `Optimizer.add_variable_from_reference`: slots of a variable in shards are cut likewise, each
  shard on its variable's server.

Private names used: `Variable._value`, `Layer.lora_enabled`, `ShardedVariable`'s class (of the
variables that TensorFlow made); guarded by tests/parameter_server/test_server_canaries.py.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.keras_compat.patches import Patches

_Optimizer = keras.optimizers.Optimizer
_thread = threading.local()


@contextlib.contextmanager
def step_on_servers(own: Sequence[Any]) -> Iterator[None]:
    """While a worker's step is traced in this thread.

    Args:
        own: the Keras variables of which each step has its own, such as a metric's.
    """
    _thread.steps, _thread.own = True, {id(variable) for variable in own}
    try:
        yield
    finally:
        _thread.steps = False


def in_step_on_servers() -> bool:
    """Whether a worker's step is being traced in this thread."""
    return bool(getattr(_thread, "steps", False))


def value_of(variable: Any) -> Any:
    """TensorFlow's variable behind a Keras variable, or the variable itself."""
    return getattr(variable, "_value", variable)


def shards_of(variable: Any) -> list[Any]:
    """The TensorFlow variables that hold a variable, in order of its rows."""
    value = value_of(variable)
    return list(value.variables) if is_sharded(value) else [value]


def is_sharded(variable: Any) -> bool:
    """Whether a variable is cut into shards."""
    return hasattr(value_of(variable), "is_sharded_variable")


class OwnValues(keras.StatelessScope):  # type: ignore[misc]
    """A scope in which a step has values of its own of some variables, and of all it assigns.

    The others are what the servers have: Keras's own scope knows no value of those, and its
    regularizers then have none (`Layer._get_regularization_losses`).
    """

    def get_current_value(self, variable: Any) -> Any:
        """The step's own value, or the variable on its server."""
        return super().get_current_value(variable) if self.holds(variable) else value_of(variable)

    def holds(self, variable: Any) -> bool:
        """Whether the step has a value of its own."""
        return id(variable) in self.state_mapping


def _replacements() -> Mapping[tuple[Any, str], Any]:
    return {
        (keras.Variable, "assign_add"): _atomic("assign_add"),
        (keras.Variable, "assign_sub"): _atomic("assign_sub"),
        (keras.Variable, "__array__"): _array(keras.Variable.__array__),
        (tf.GradientTape, "gradient"): _gradient(tf.GradientTape.gradient),
        (keras.layers.Embedding, "call"): _embed(keras.layers.Embedding.call),
        (_Optimizer, "add_variable_from_reference"): _add_slot(
            _Optimizer.add_variable_from_reference
        ),
    }


def _atomic(name: str) -> Callable[..., Any]:
    original = getattr(keras.Variable, name)

    def assign(self: Any, value: Any) -> Any:
        if not in_step_on_servers() or id(self) in _thread.own:
            return original(self, value)
        held = value_of(self)
        return getattr(held, name)(tf.cast(value, held.dtype), read_value=False)

    return assign


def _array(original: Callable[..., Any]) -> Callable[..., Any]:
    def __array__(self: Any, dtype: Any = None) -> Any:  # noqa: N807  # NumPy asks for its name
        if not is_sharded(self):
            return original(self, dtype)
        return np.asarray(value_of(self).numpy(), dtype)

    return __array__


def _gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        known = isinstance(sources, (list, tuple))
        if not in_step_on_servers() or not known or not any(map(is_sharded, sources)):
            return original(self, target, sources, *args, **kwargs)
        groups = [shards_of(v) if is_sharded(v) else [v] for v in sources]
        flat = iter(original(self, target, list(itertools.chain(*groups)), *args, **kwargs))
        return [
            _together([next(flat) for _ in group]) if is_sharded(v) else next(flat)
            for v, group in zip(sources, groups, strict=True)
        ]

    return gradient


def _together(gradients: Sequence[Any]) -> tuple[Any, ...] | None:
    return None if all(g is None for g in gradients) else tuple(gradients)


def _embed(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, inputs: Any) -> Any:
        plain = isinstance(inputs, tf.Tensor) and not getattr(self, "lora_enabled", False)
        if not in_step_on_servers() or not plain or self.embeddings is not self._embeddings:
            return original(self, inputs)
        rows = tf.cast(inputs, tf.int64)
        rows = tf.where(rows < 0, rows + self.input_dim, rows)
        table = shards_of(self.embeddings)
        if len(table) == 1:
            found = tf.gather(table[0], rows)
        else:
            found = tf.nn.embedding_lookup(value_of(self.embeddings), rows)
        return tf.cast(found, self.compute_dtype)

    return call


def _add_slot(original: Callable[..., Any]) -> Callable[..., Any]:
    plain = next(b for b in _Optimizer.__mro__ if b.__module__.endswith("base_optimizer"))

    def add_variable_from_reference(
        self: Any, reference_variable: Any, name: Any = None, initializer: Any = "zeros"
    ) -> Any:
        if not is_sharded(reference_variable):
            return original(self, reference_variable, name=name, initializer=initializer)
        with tf.variable_creator_scope(_like(value_of(reference_variable))):
            return plain.add_variable_from_reference(
                self, reference_variable, name=name, initializer=initializer
            )

    return add_variable_from_reference


def _like(sharded: Any) -> Callable[..., Any]:
    """A creator of variables in shards of the same rows on the same servers."""

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial = kwargs["initial_value"]
        whole = tf.convert_to_tensor(initial() if callable(initial) else initial)
        if whole.shape != sharded.shape:
            return next_creator(**kwargs)
        extended = tf.distribute.get_strategy().extended
        made, begin = [], 0
        for shard in sharded.variables:
            end = begin + shard.shape[0]
            with extended.colocate_vars_with(shard):
                made.append(tf.Variable(whole[begin:end], trainable=False, name=kwargs["name"]))
            begin = end
        return type(sharded)(made, name=kwargs["name"])

    return create


variables_on_servers = Patches(_replacements)
"""Enter it, and Keras's variables are right on parameter servers; elsewhere nothing changes."""
