"""How many steps one call of the step function runs, where the user has not set it.

What Python does between two steps takes some milliseconds: hooks of callbacks, the schedule of
metrics, the flight recorder, the call of a TensorFlow function. Where no code looks at the state
between two steps, several run in one call, as with Keras's `steps_per_execution`. The chief
measures a step and chooses the number; it travels in the notes of a reading of the metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from phalanx.data.batch_iterator import BatchIterator
from phalanx.distributed.host_collectives import on_any_worker
from phalanx.distributed.strategy import uses_horovod
from phalanx.training.context import CallContext
from phalanx.training.log_requirements import watches_batches
from phalanx.training.run_switches import runs_eagerly, switches
from phalanx.training.step_function import StepFunction

SECONDS = 0.1
"""An execution takes no longer: progress stays alive, and a signal is answered soon."""

WARM_STEPS = 12
"""Steps of this `fit` before the first choice; the first ones trace functions and fill caches."""

_SECONDS_SAVED = 0.001
"""What a step costs in Python at the least; see docs/benchmarks.md."""


class ExecutionSize:
    """Chooses how many steps an execution has.

    Attributes:
        is_automatic: whether it chooses at all; the same on all workers.
        needs_reading: whether the chief must say its choice; the same on all workers.
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
        [fixed] = on_any_worker(stage.strategy, stage.place, fixed)
        self.is_automatic = not fixed
        self._function = function
        self._stream = stream
        self._clock = clock
        self._started = self._last = clock()
        self._first_seconds = 0.0
        self._trained = 0
        self._recent: deque[float] = deque(maxlen=WARM_STEPS)
        self._steps_to_train: int | None = None

    def begin(self, epochs: int) -> None:
        """Know how many epochs are to be trained."""
        steps = self._stream.steps
        self._steps_to_train = None if steps is None else steps * epochs
        self._started = self._last = self._clock()

    @property
    def needs_reading(self) -> bool:
        """See the class."""
        return self.is_automatic and self._trained == WARM_STEPS

    def executed(self, steps: int) -> None:
        """An execution of so many steps has ended, with all that belongs to it."""
        now = self._clock()
        if self._trained == 0:
            self._first_seconds = now - self._started
        else:
            self._recent.append((now - self._last) / steps)
        self._trained += steps
        self._last = now

    def propose(self) -> float:
        """The number of steps, if this worker is the chief; 0 where it is not known yet."""
        if not self.is_automatic or self._function.has_dynamic_collectives:
            return 0.0
        if len(self._recent) < WARM_STEPS - 1 or not self._pays():
            return 0.0
        return float(max(1, int(SECONDS / max(median(self._recent), 1e-6))))

    def agree(self, number: float) -> None:
        """Take over what the chief proposed."""
        if self.is_automatic and number > 0:
            self._stream.steps_per_execution = int(number)

    def _pays(self) -> bool:
        """Whether it is worth to trace the steps once more, in a loop."""
        if self._stream.steps_per_execution > 1:
            return True
        steps = max(self._trained, self._steps_to_train or 0)
        return steps * _SECONDS_SAVED >= self._first_seconds
