"""How many steps one call of the step function runs, where the user has not set it.

What Python does between two steps takes some milliseconds: hooks of callbacks, the schedule of
metrics, the flight recorder, the call of a TensorFlow function. Where no code looks at the state
between two steps, several run in one call, as with Keras's `steps_per_execution`. The chief
measures a step and chooses the number once; it travels in the notes of a reading of the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from phalanx.data.batch_iterator import BatchIterator
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.distributed.strategy import uses_horovod
from phalanx.training.context import CallContext
from phalanx.training.log_requirements import watches_batches
from phalanx.training.run_switches import runs_eagerly, switches
from phalanx.training.step_function import Outputs, StepFunction

SECONDS = 0.1
"""An execution takes no longer: progress stays alive, and a signal is answered soon."""

FIRST_READING, SECOND_READING = 4, 12
"""Steps of this `fit` before the two readings between which a step is measured: a reading waits for
the device, which a call of a step does not. The first steps trace functions and fill caches."""

LEAST_STEPS = 200
"""A `fit` of fewer steps, or that has trained fewer where their number is unknown, has no such
readings: to trace its steps once more would take longer than it saves."""

_SECONDS_SAVED = 0.001
"""What a step costs in Python at the least; see docs/benchmarks.md."""


class ExecutionSize:
    """Chooses how many steps an execution has.

    Attributes:
        is_automatic: whether it chooses at all; the same on all workers.
    """

    def __init__(
        self,
        stage: CallContext,
        function: StepFunction,
        stream: BatchIterator,
        callbacks: Iterable[Any],
        *,
        clock: Callable[[], float],
    ) -> None:
        """Agree with the other workers on whether to choose: a small gather.

        Args:
            stage: where the `fit` runs.
            function: runs the steps.
            stream: the data; has the number of steps.
            callbacks: those of this worker.
            clock: seconds, increasing.
        """
        fixed = (
            stream.steps_per_execution != 1
            or not stream.source.counted
            or runs_eagerly(stage.model)
            or switches().profile is not None
            or uses_horovod(stage.strategy)  # Not tried with its op in a loop.
            or any(map(watches_batches, callbacks))
        )
        [fixed] = on_any_worker(stage.strategy, stage.topology, fixed)
        self.is_automatic = not fixed
        self._function = function
        self._stream = stream
        self._clock = clock
        self._started = self._measured_from = clock()
        self._first_seconds = 0.0
        self._first = self._second = -1
        self._trained = 0
        self._steps_to_train: int | None = None

    def begin(self, epochs: int) -> None:
        """Know how many epochs are to be trained."""
        steps = self._stream.steps
        self._steps_to_train = None if steps is None else steps * epochs
        skipped = LEAST_STEPS if steps is None else 0
        if steps is None or steps * epochs >= LEAST_STEPS:
            self._first, self._second = skipped + FIRST_READING, skipped + SECOND_READING
        self._started = self._clock()

    @property
    def needs_reading(self) -> bool:
        """Whether the metrics must be read after this step; the same on all workers."""
        return self.is_automatic and self._trained in (self._first, self._second)

    def postpone(self) -> None:
        """Have the reading that is needed now after the next step."""
        if self._trained == self._first:
            self._first, self._second = self._first + 1, self._second + 1
        elif self._trained == self._second:
            self._second += 1

    def executed(self, steps: int) -> None:
        """An execution of so many steps has ended, with all that belongs to it."""
        if self._trained == 0:
            self._first_seconds = self._clock() - self._started
        if self._trained == self._first:
            self._measured_from = self._clock()
        self._trained += steps

    def propose(self, outputs: Outputs) -> float:
        """The number of steps, if this worker is the chief; 0 for no choice.

        Args:
            outputs: what the last step returned.
        """
        if not self.is_automatic or self._trained != self._second or not self._pays():
            return 0.0
        if self._function.has_dynamic_collectives:
            return 0.0
        for value in filter(tf.is_tensor, tf.nest.flatten(outputs)):
            value.numpy()  # Waits for the device.
        seconds = (self._clock() - self._measured_from) / (self._second - self._first)
        return float(max(1, int(SECONDS / max(seconds, 1e-6))))

    def agree(self, number: float) -> None:
        """Take over what the chief proposed."""
        if self.is_automatic and number > 0:
            self._stream.steps_per_execution = int(number)

    def _pays(self) -> bool:
        """Whether it is worth to trace the steps once more, in a loop."""
        steps = max(self._trained, self._steps_to_train or 0)
        return steps * _SECONDS_SAVED >= self._first_seconds
