"""Build what a `train_step` of the user's makes lazily, where replicated variables can be made.

TensorFlow makes replicated variables outside of replicas only. Keras builds such models from
`call()` and `compile`'s optimizer; a GAN has no `call()`, and two optimizers. Its own step knows
what it makes, so that is traced once, in no replica, with everything left out that only replicas
can do: an optimizer's `apply` builds it, a gradient is zeros, an assignment does nothing.

What is replaced is public; private name used: `tf.__internal__.FuncGraph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import TrainingError
from phalanx.keras_compat.inlined_functions import FUNCTION, inlined
from phalanx.keras_compat.optimizer_clippers import innermost
from phalanx.keras_compat.patches import Patches


def build_by_step(
    step: Callable[[Any], Any], batch_spec: Any, strategy: tf.distribute.Strategy
) -> None:
    """Trace `step` on a batch of that spec; nothing is run.

    Args:
        step: `model.train_step`.
        batch_spec: shapes and dtypes of a batch.
        strategy: the strategy to build under.

    Raises:
        TrainingError: the step cannot be traced so.
    """
    graph = tf.__internal__.FuncGraph("build")  # Keras makes variables outside of it
    try:
        with strategy.scope(), _only_builds, graph.as_default():
            step(keras.tree.map_structure(_placeholder, batch_spec))
    except Exception as error:
        raise TrainingError(
            f"Asked to train on several replicas of one process, whose variables must exist before "
            f"a step; train_step could not be traced outside of replicas ({error}). Make layers, "
            "optimizers and variables in __init__ or build, or train by workers, which need no "
            "such thing: phalanx run --workers 2."
        ) from error


def _placeholder(spec: Any) -> Any:
    if isinstance(spec, tf.TensorSpec):
        return tf.compat.v1.placeholder(spec.dtype, spec.shape)
    if isinstance(spec, tf.RaggedTensorSpec | tf.SparseTensorSpec):
        return tf.nest.map_structure(_placeholder, spec, expand_composites=True)
    return spec


def _replacements() -> Mapping[tuple[Any, str], Any]:
    return {
        (keras.optimizers.Optimizer, "apply"): _build,
        (keras.optimizers.LossScaleOptimizer, "apply"): _build,
        (tf.GradientTape, "gradient"): _zeros,
        (keras.Variable, "assign"): lambda variable, value: value,
        (FUNCTION, "__call__"): inlined(lambda: True),
    }


def _build(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
    del grads
    if trainable_variables is not None:
        for one in dict.fromkeys((optimizer, innermost(optimizer))):
            if not one.built:
                one.build(list(trainable_variables))


def _zeros(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    del tape, target, args, kwargs

    def zeros(source: Any) -> Any:
        if isinstance(source, tf.Tensor):
            return tf.zeros_like(source)
        return tf.zeros(tuple(source.shape), source.dtype)

    return tf.nest.map_structure(zeros, sources)


_only_builds = Patches(_replacements)
