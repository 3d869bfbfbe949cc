"""The steps at which somebody looks at the gradients: a function of their own."""

from __future__ import annotations

import time
from typing import Any, Protocol

import tensorflow as tf

from phalanx.data.place import ReplicaPlace
from phalanx.errors import OptionError
from phalanx.gradients.observation import Lens, Observation, observing
from phalanx.training.sampling import Sampling
from phalanx.training.step import Outputs, StepFunction


class GradientObserver(Protocol):
    """A callback that is shown the gradients of some steps."""

    observes_gradients: bool
    every_n_steps: int
    max_overhead: float | None

    def lens(self, look: int) -> Lens:
        """What to look at, the `look`-th time (from 0)."""

    def take_gradients(self, step: int, seen: list[dict[str, Any]], place: ReplicaPlace) -> None:
        """What this process's replicas saw at `step`, as NumPy values, by local replica."""


class ObservedSteps:
    """Runs the observed steps of one `fit`, and shows them to its observer."""

    def __init__(self, model: Any, function: StepFunction, observer: GradientObserver) -> None:
        """Get ready beside `function`; what is needed is traced when a step first needs it."""
        plan = function.plan
        self._observer = observer
        self._place = plan.place
        self._step = StepFunction(model, "train", plan)
        self._step.assigned = function.assigned  # what its steps assign, these do
        self._eager = bool(model.run_eagerly)
        self._functions: dict[Lens, Any] = {}
        self._looks = 0
        self.sampling = Sampling(
            every=observer.every_n_steps, max_overhead=observer.max_overhead, clock=time.monotonic
        )

    def run(self, iterator: Any, step: int) -> Outputs:
        """Run one step, numbered from 1, and show its gradients.

        Raises:
            StopIteration: there was no batch left.
        """
        begun = time.monotonic()
        lens = self._observer.lens(self._looks)
        traced = lens not in self._functions
        function = self._function_for(lens)
        note = tf.constant(self.sampling.proposal, tf.float32)
        try:
            outputs, seen = function(iterator, tf.constant(step, tf.int64), note)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise StopIteration from None
        shown = tf.nest.map_structure(lambda t: t.numpy(), seen)
        self._observer.take_gradients(step, shown, self._place)
        self._looks += 1
        interval = float(shown[0]["whole"]["note"]) if shown[0] else self.sampling.proposal
        self.sampling.looked(step, begun, interval, traced=traced)
        result: Outputs = outputs
        return result

    def _function_for(self, lens: Lens) -> Any:
        if lens not in self._functions:

            @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
            def observed(iterator: Any, step: tf.Tensor, note: tf.Tensor) -> Any:
                observation = Observation(lens, step=step, note=note)
                with observing(observation):
                    outputs = self._step.on_replicas(next(iterator))
                first = self._place.first
                seen = [observation.seen.get(first + i, {}) for i in range(self._place.local)]
                return outputs, seen

            self._functions[lens] = observed if self._eager else tf.function(observed)
        return self._functions[lens]


def observer_among(callbacks: Any) -> GradientObserver | None:
    """The callback that observes gradients, if there is one.

    Raises:
        OptionError: there are several, which would each need steps of their own.
    """
    found = [c for c in callbacks if getattr(c, "observes_gradients", False)]
    if len(found) > 1:
        raise OptionError(
            f"Asked to fit with {len(found)} callbacks that observe gradients; one can. Give one "
            "GradientLogger the layers and histograms of all."
        )
    return found[0] if found else None
