"""Look into an eager step: each operation, each layer, forward and backward.

Private names used: `tensorflow.python.framework.op_callbacks` (the base of tf.debugging: every
operation that runs eagerly, those of a gradient tape included), `_keras_mask` (a mask travels as an
attribute of its tensor), `Model._flatten_layers`; guarded by tests/unit/test_replay.py.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
import tensorflow as tf

from phalanx.keras_compat.patches import Patches
from phalanx.keras_compat.random_draws import ReplicaRows, draws_by_rows

MASK = "_keras_mask"
"""The attribute of a tensor in which Keras keeps its mask."""


class Listener(Protocol):
    """Receives what runs; it must run no operation itself."""

    def on_operation(self, kind: str, inputs: Any, outputs: Any) -> None:
        """An operation has run: its type in TensorFlow, and its tensors."""

    def on_enter(self, name: str, inputs: list[Any]) -> None:
        """The call of a layer or loss begins, with these tensors."""

    def on_leave(self, name: str, outputs: list[Any]) -> None:
        """It has ended with these."""

    def on_gradient(self, name: str, side: str, gradient: Any) -> None:
        """The gradient of an output ("out") or input ("in") of a layer or loss is known."""


@contextlib.contextmanager
def probe_ops(listener: Listener) -> Iterator[None]:
    """Report to `listener` all that runs eagerly in this thread."""
    callbacks = importlib.import_module("tensorflow.python.framework.op_callbacks")

    def on_operation(
        kind: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        del attrs, op_name
        if graph is None:
            listener.on_operation(str(kind), inputs, outputs)

    were_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    callbacks.add_op_callback(on_operation)
    try:
        with Patches(lambda: _replacements(listener)):
            yield
    finally:
        callbacks.remove_op_callback(on_operation)
        tf.config.run_functions_eagerly(were_eager)


def _replacements(listener: Listener) -> Mapping[tuple[Any, str], Any]:
    layer, operation, loss = keras.layers.Layer, keras.Operation, keras.losses.Loss
    return {
        (layer, "__call__"): _probed(layer.__call__, listener),
        # A layer's own call ends in its base's, which reports operations only.
        (operation, "__call__"): _probed(operation.__call__, listener, but=layer),
        (loss, "__call__"): _probed(loss.__call__, listener),
    }


def _probed(
    original: Callable[..., Any], listener: Listener, but: type | None = None
) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = [each for each in tf.nest.flatten((args, kwargs)) if tf.is_tensor(each)]
        is_symbolic = any(
            isinstance(each, keras.KerasTensor) for each in keras.tree.flatten((args, kwargs))
        )
        if is_symbolic or not tf.executing_eagerly() or (but and isinstance(self, but)):
            return original(self, *args, **kwargs)
        name = str(getattr(self, "path", None) or self.name)
        listener.on_enter(name, given)
        args, kwargs = _with_probes((args, kwargs), name, "in", listener)
        result = original(self, *args, **kwargs)
        name = str(getattr(self, "path", None) or self.name)
        result = _with_probes(result, name, "out", listener)
        listener.on_leave(name, [each for each in tf.nest.flatten(result) if tf.is_tensor(each)])
        return result

    return call


def _with_probes(structure: Any, name: str, side: str, listener: Listener) -> Any:
    def probed(value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
            return value

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def identity(x: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                listener.on_gradient(name, side, upstream)
                return upstream

            return tf.identity(x), gradient

        passed = identity(value)
        if (mask := getattr(value, MASK, None)) is not None:
            setattr(passed, MASK, mask)
        return passed

    return keras.tree.map_structure(probed, structure)


@contextlib.contextmanager
def gradients_of(optimizer: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Let `optimizer` apply nothing; the list gets (gradient, variable) pairs in its place."""
    caught: list[tuple[Any, Any]] = []

    def apply(gradients: Any, variables: Any = None) -> None:
        known = optimizer._trainable_variables if variables is None else variables
        caught.extend(zip(gradients, known, strict=False))

    vars(optimizer)["apply"] = apply
    try:
        yield caught
    finally:
        del vars(optimizer)["apply"]


@contextlib.contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Let every layer compute in float32 meanwhile."""
    layers = list(model._flatten_layers())
    policies = [layer.dtype_policy for layer in layers]
    for layer in layers:
        layer.dtype_policy = keras.DTypePolicy("float32")
    try:
        yield
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy


def draws_of(rows: ReplicaRows) -> Patches:
    """While entered, layers draw what the replica that held `rows` drew for them."""
    return Patches(lambda: draws_by_rows(lambda: rows))
