"""The steps that are timed in their parts: input, communication, and the rest.

Only some steps are: they fetch their batch in a call of its own, which costs some hundred
microseconds, and their all-reduce is measured in a function of their own. All workers must
time the same steps, since the all-reduce belongs to that function.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from phalanx.gradients.comm_timer import Stopwatch, now, seconds_in
from phalanx.gradients.step_context import all_replicas_scope
from phalanx.monitoring.flight_recorder import flight
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.monitoring.throughput import StepSplit
from phalanx.training.step_function import Outputs, StepFunction


@dataclass(kw_only=True)
class TimedSteps:
    """Runs timed steps next to those of `function`.

    Attributes:
        function: runs the other steps.
        clock: seconds, increasing.
        last: how the last timed step was split.
        traced: whether that one had to trace its function first, so that its time is void.
    """

    function: StepFunction
    clock: Callable[[], float] = time.perf_counter
    last: StepSplit = field(default_factory=StepSplit)
    traced: bool = False

    def __post_init__(self) -> None:
        self._fetch = self.function.compile_like_model(_fetch)
        self._with_stopwatch: Any = None
        self._made_for = -1

    @classmethod
    def of(cls, function: StepFunction) -> TimedSteps:
        """The one for `function`, for all calls, so that it is traced once."""
        found = function.extensions.setdefault(cls, cls(function=function))
        assert isinstance(found, cls)
        return found

    def run(self, iterator: Any, *, communication: bool) -> Outputs:
        """Run one step and keep how its time was split.

        Args:
            iterator: the data.
            communication: whether to measure the all-reduce too.

        Raises:
            StopIteration: there was no batch left.
        """
        self.traced = False
        plan = self.function.plan
        if not plan.counted:  # TensorFlow's distributed iterators are its own
            self.last = StepSplit()
            return self.function.on_iterator(iterator, 1)[1]
        try:
            with phase_tracker.during("input"):
                element, waited_for_input = self._fetch(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise StopIteration from None
        fetched = self.clock()
        outputs, waited = self._step(element, communication and plan.topology.total > 1)
        if plan.topology.total == 1:
            waited = 0.0
        self.last = StepSplit(
            input=max(0.0, float(waited_for_input)),
            busy=None if waited is None else max(0.0, self.clock() - fetched - waited),
            communication=waited,
            batch=int(element[0]),
        )
        return outputs

    def _step(self, element: Any, communication: bool) -> tuple[Outputs, float | None]:
        if not communication:
            return self.function.on_batch(element), None
        self.function.look_at_step(element)
        if self._with_stopwatch is None or self._made_for != self.function.version:
            self._with_stopwatch = self.function.compile_like_model(self._under_a_stopwatch)
            self._made_for = self.function.version
            self.traced = True
        with flight.execution("train"):
            outputs, laps, is_complete = self._with_stopwatch(element)
        if not bool(is_complete):
            return outputs, None
        by_replica = [seconds_in(replica) for replica in laps.numpy()]
        return outputs, sum(by_replica) / len(by_replica)

    def _under_a_stopwatch(self, element: Any) -> tuple[Outputs, tf.Tensor, bool]:
        stopwatch = Stopwatch()
        with all_replicas_scope(stopwatch=stopwatch):
            outputs = self.function.on_replicas(element)
        return outputs, stopwatch.tensor(), tf.constant(stopwatch.is_complete)


def _fetch(iterator: Any) -> tuple[Any, tf.Tensor]:
    """The next element, and the seconds that it took to come."""
    begin = now()
    with tf.control_dependencies([begin]):
        element = next(iterator)
    with tf.control_dependencies(tf.nest.flatten(element, expand_composites=True)):
        end = now()
    return element, end - begin
