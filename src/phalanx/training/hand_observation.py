"""See the gradients of a hand-written loop, in two lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.data.place import ReplicaPlace
from phalanx.errors import TrainingError
from phalanx.gradients.observation import Observation, observing
from phalanx.seam.optimizers import optimizers_reduce_first
from phalanx.training.observed import GradientObserver
from phalanx.training.sampling import Sampling


def observe_gradients(step: Callable[..., Any], logger: GradientObserver) -> Callable[..., Any]:
    """Your training step, of which `logger` sees the sampled calls.

        step = phalanx.observe_gradients(step, phalanx.callbacks.GradientLogger())
        for batch in distributed_dataset:
            step(batch)

    Calls that are not sampled run your step as it is; a sampled one runs a second trace of
    it. Every worker must call it equally often.

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


def _place_of(observation: Observation) -> ReplicaPlace:
    """This process's replicas, as the step showed them."""
    if not observation.seen:
        raise TrainingError(
            "Asked to observe the gradients of a step in which no Keras optimizer applied any. "
            "Pass the function that calls strategy.run with optimizer.apply_gradients in it."
        )
    return ReplicaPlace(
        first=min(observation.seen), local=len(observation.seen), total=observation.replicas
    )


class _ObservedLoop:
    def __init__(self, step: Callable[..., Any], logger: GradientObserver) -> None:
        self._plain = step
        self._python = getattr(step, "python_function", step)
        self._eager = self._python is step
        self._logger = logger
        self._functions: dict[Any, Any] = {}
        self._calls = 0
        self._looks = 0
        self._place = ReplicaPlace()
        self._sampling = Sampling(
            every=logger.every_n_steps, max_overhead=logger.max_overhead, clock=time.monotonic
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if not self._sampling.is_due(self._calls):
            return self._plain(*args, **kwargs)
        return self._look(args, kwargs)

    def _look(self, args: Any, kwargs: Any) -> Any:
        begun = time.monotonic()
        note = tf.constant(self._sampling.proposal, tf.float32)
        lens = self._logger.lens(self._looks)
        traced = lens not in self._functions
        function = self._function_for(lens)
        result, seen = function(tf.constant(self._calls, tf.int64), note, args, kwargs)
        shown = tf.nest.map_structure(lambda t: t.numpy(), seen)
        self._logger.take_gradients(self._calls, shown, self._place)
        self._looks += 1
        interval = float(shown[0]["whole"]["note"])
        self._sampling.looked(self._calls, begun, interval, traced=traced)
        return result

    def _function_for(self, lens: Any) -> Any:
        if lens not in self._functions:

            @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
            def observed(step: tf.Tensor, note: tf.Tensor, args: Any, kwargs: Any) -> Any:
                observation = Observation(lens, step=step, note=note)
                with optimizers_reduce_first, observing(observation):
                    result = self._python(*args, **kwargs)
                self._place = _place_of(observation)
                return result, [observation.seen[i] for i in sorted(observation.seen)]

            self._functions[lens] = observed if self._eager else tf.function(observed)
        return self._functions[lens]
