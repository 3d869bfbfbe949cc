"""Right gradients in a custom training loop, without `phalanx.enable()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from phalanx.callbacks.fit_protocols import GradientListener
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError, TrainingError
from phalanx.gradients.gradient_probe import GradientProbe, ProbeConfig
from phalanx.gradients.step_context import all_replicas_scope
from phalanx.keras_compat.optimizer_patches import optimizers_reduce_first, patch_instance
from phalanx.training.gradient_sampling import GradientSampler, TraceCache


def distribute_optimizer(optimizer: Any) -> Any:
    """Let `optimizer` add up its gradients over all replicas before it clips them.

    For loops that call `strategy.run` themselves. As `tf.distribute` has it there, the
    replicas' gradients are summed: scale the loss by the global batch size. Under
    `phalanx.enable()`, so also under `phalanx run`, every Keras optimizer does this.

    Args:
        optimizer: a Keras 3 optimizer; it is changed and returned.

    Raises:
        ConfigurationError: `optimizer` is not a Keras 3 optimizer.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            "distribute_optimizer needs a keras.optimizers.Optimizer (Keras 3); found "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    patch_instance(optimizer)
    return optimizer


def observe_gradients(step: Callable[..., Any], logger: GradientListener) -> Callable[..., Any]:
    """Your training step, of which `logger` sees the sampled calls.

        step = phalanx.observe_gradients(step, phalanx.callbacks.GradientLogger())
        for batch in distributed_dataset:
            step(batch)

    Calls that are not sampled run your step as it is; a sampled one runs a second trace of
    it. In both, Keras optimizers add up the replicas' gradients before they clip them, as
    under `phalanx.enable()`. Every worker must call it equally often.

    Args:
        step: a function that runs `strategy.run` with a Keras optimizer's `apply` in it;
            a `tf.function` or a plain Python function, called with batches.
        logger: a `GradientLogger`. A loop scales its loss by the global batch, so a
            worker's own gradient is logged times the number of replicas; the noise scale
            needs sample counts, which only `fit` knows.

    Returns:
        A function that takes and returns what `step` does.
    """
    return _ObservedLoop(step, logger)


def _topology_of(observation: GradientProbe) -> ReplicaTopology:
    """This process's replicas, as the step showed them."""
    if not observation.seen:
        raise TrainingError(
            "Asked to observe the gradients of a step in which no Keras optimizer applied any. "
            "Pass the function that calls strategy.run with optimizer.apply_gradients in it."
        )
    return ReplicaTopology(
        first=min(observation.seen), local=len(observation.seen), total=observation.replicas
    )


class _ObservedLoop:
    def __init__(self, step: Callable[..., Any], logger: GradientListener) -> None:
        self._plain = step
        self._python = getattr(step, "python_function", step)
        self._eager = self._python is step
        self._traces = TraceCache(self._trace)
        self._sampler = GradientSampler(logger)
        self._calls = 0
        self._topology = ReplicaTopology()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if not self._sampler.sampling.is_due(self._calls):
            with optimizers_reduce_first:  # as in the calls that are looked at
                return self._plain(*args, **kwargs)

        def on_these(function: Any, number: tf.Tensor, note: tf.Tensor) -> tuple[Any, Any]:
            result, seen = function(number, note, args, kwargs)
            return result, seen

        return self._sampler.sample(self._calls, self._traces, on_these, lambda: self._topology)

    def _trace(self, probe_config: ProbeConfig) -> Any:
        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def observed(step: tf.Tensor, note: tf.Tensor, args: Any, kwargs: Any) -> Any:
            observation = GradientProbe(probe_config, step=step, note=note)
            with optimizers_reduce_first, all_replicas_scope(probe=observation):
                result = self._python(*args, **kwargs)
            self._topology = _topology_of(observation)
            return result, [observation.seen[i] for i in sorted(observation.seen)]

        return observed if self._eager else tf.function(observed)
