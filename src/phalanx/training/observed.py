"""The steps at which somebody looks at the gradients: a function of their own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.errors import OptionError
from phalanx.gradients.observation import Lens, Observation, observing
from phalanx.training.looks import GradientObserver, Looks, TracesByLens
from phalanx.training.run_switches import runs_eagerly
from phalanx.training.step import Outputs, StepFunction
from phalanx.worker.flight import flight


class ObservedSteps:
    """Runs the observed steps of one `fit`, and shows them to its observer."""

    def __init__(self, model: Any, function: StepFunction, observer: GradientObserver) -> None:
        """Get ready beside `function`; what is needed is traced when a step first needs it."""
        self._place = function.plan.place
        self._traces = _traces_beside(model, function)
        self._looks = Looks(observer)
        self.sampling = self._looks.sampling

    def run(self, iterator: Any, step: int) -> Outputs:
        """Run one step, numbered from 1, and show its gradients.

        Raises:
            StopIteration: there was no batch left.
        """

        def on_next(function: Any, number: tf.Tensor, note: tf.Tensor) -> tuple[Any, Any]:
            try:
                outputs, seen = function(iterator, number, note)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise StopIteration from None
            return outputs, seen

        with flight.execution("train"):
            outputs: Outputs = self._looks.look(step, self._traces, on_next, lambda: self._place)
        return outputs


class ObservedTraces(TracesByLens):
    """The second traces of a step; kept from one `fit` to the next.

    Attributes:
        version: that of the step function which these stand beside.
    """

    def __init__(self, model: Any, function: StepFunction) -> None:
        """Get ready beside `function`."""
        super().__init__(self._trace)
        self.version = function.version
        self._function = function
        self._step = StepFunction(model, "train", function.plan)
        self._step.assigned = function.assigned  # what its steps assign and return, these do
        self._step.results = function.results
        self._step.companions = function.companions  # what keeps those that go wrong
        self._place = function.plan.place
        self._eager = runs_eagerly(model)

    def _trace(self, lens: Lens) -> Any:
        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def observed(iterator: Any, step: tf.Tensor, note: tf.Tensor) -> Any:
            element = next(iterator)
            observation = Observation(lens, step=step, note=note)
            with observing(observation):
                outputs = self._step.on_replicas(element)
                self._function.keep_beside(element)
            first = self._place.first
            seen = [observation.seen.get(first + i, {}) for i in range(self._place.local)]
            return outputs, seen

        return observed if self._eager else tf.function(observed)


def _traces_beside(model: Any, function: StepFunction) -> ObservedTraces:
    kept = function.companions.get(ObservedTraces)
    if kept is None or kept.version != function.version:
        kept = function.companions[ObservedTraces] = ObservedTraces(model, function)
    found: ObservedTraces = kept
    return found


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
