"""Reports a `fit` to callbacks, events and the phase tracker, and times its steps."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from phalanx.callbacks.fit_protocols import (
    ThroughputListener,
    local_metrics_readers,
    throughput_listeners,
)
from phalanx.distributed.host_collectives import all_gather_rows, on_any_worker
from phalanx.keras_compat.model_access import steps_trained
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.memory import resident_bytes
from phalanx.monitoring.phase_tracker import Phase, phase_tracker
from phalanx.monitoring.throughput import ThroughputMeter, ThroughputNumbers, WorkerTimes
from phalanx.monitoring.training_events import TrainingEvents
from phalanx.training.checkpoint_manager import CheckpointManager, NullCheckpointManager
from phalanx.training.context import CallContext
from phalanx.training.error_context import annotate_errors
from phalanx.training.execution_size import ExecutionSize
from phalanx.training.local_steps import LocalSteps
from phalanx.training.metrics import MetricReader, reader_of
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.profiling import make_profiler
from phalanx.training.step_function import Outputs, StepFunction
from phalanx.training.step_runner import StepRunner
from phalanx.training.timed_step import TimedSteps

_fits = itertools.count()


class FitReporter:
    """Reports the progress of one `fit` to its callbacks and, under `phalanx run`, as events."""

    def __init__(self, model: Any, callbacks: Any, *, is_chief: bool) -> None:
        """Nothing is reported yet."""
        self._model = model
        self._callbacks = callbacks
        self._is_chief = is_chief
        self._events = _training_events(is_chief=is_chief)
        self._listeners = throughput_listeners(callbacks.callbacks)
        self._epoch = 0
        self._step = 0

    def begin(self, *, epochs: int, initial_epoch: int, steps: int | None) -> None:
        """Training starts; callbacks have restored their state."""
        self._step = steps_trained(self._model)
        phase_tracker.at(step=self._step, epoch=initial_epoch)
        if self._events is not None:
            self._events.start(
                self._model,
                epochs=epochs,
                initial_epoch=initial_epoch,
                steps=steps,
                step=self._step,
            )

    def begin_epoch(self, epoch: int) -> None:
        """An epoch starts."""
        self._epoch = epoch
        phase_tracker.at(epoch=epoch)
        if self._events is not None:
            self._events.epoch_begins()
        with phase_tracker.during("callbacks"):
            self._callbacks.on_epoch_begin(epoch)

    def trained(self, step: int) -> None:
        """Steps up to `step` are done; their hooks have not run yet."""
        self._step = step
        phase_tracker.at(step=step)
        if self._events is not None:
            self._events.trained()

    def metrics(self, logs: Mapping[str, Any], batch: int) -> None:
        """Metrics were read after `batch` of this epoch."""
        if self._events is not None:
            where = {"step": self._step, "epoch": self._epoch, "batch": batch}
            self._events.metrics(logs, self._learning_rate, **where)

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """An epoch ended, its validation included."""
        with phase_tracker.during("callbacks"):
            self._callbacks.on_epoch_end(epoch, logs)
        if self._events is not None:
            self._events.epoch(logs, self._learning_rate(), step=self._step, epoch=epoch)

    def stopped(self, epoch: int) -> None:
        """Training ends before its last epoch."""
        if self._events is not None:
            self._events.stop(_reason(self._callbacks.callbacks), step=self._step, epoch=epoch)

    def end(self, logs: Mapping[str, Any]) -> None:
        """Training has ended."""
        with phase_tracker.during("callbacks"):
            self._callbacks.on_train_end(logs)
        if self._events is not None:
            self._events.end(step=self._step, epoch=self._epoch)

    def _report(self, numbers: ThroughputNumbers | None) -> None:
        if numbers is None:
            return
        if self._events is not None:
            self._events.throughput(numbers)
        with phase_tracker.during("callbacks"):
            for listener in self._listeners:
                listener.on_throughput(numbers, is_chief=self._is_chief)

    def _learning_rate(self) -> float | None:
        rate = getattr(getattr(self._model, "optimizer", None), "learning_rate", None)
        return None if rate is None else float(_value(rate))


class FitInstrumentation(FitReporter):
    """Reports a `fit` whose workers train in step, and times its steps."""

    def __init__(
        self,
        stage: CallContext,
        function: StepFunction,
        stream: Any,
        callbacks: Any,
        local: LocalSteps | None,
    ) -> None:
        """Get ready; all workers must come here together."""
        super().__init__(stage.model, callbacks, is_chief=stage.topology.is_chief)
        self._local = local
        self._waiting_for_sync = False
        self._was_read = False
        self._stream = stream
        self._topology = stage.topology
        self._profiler = make_profiler()
        self._keeper = StepTimer(
            stage,
            TimedSteps.of(function),
            listeners=self._listeners,
            is_recorded=self._events is not None,
            clock=time.monotonic,
            phases=phase_tracker.totals,
        )
        self._own = LocalMetrics(reader_of(stage.model, function))
        self._local_metrics_readers = local_metrics_readers(callbacks.callbacks)
        for reader in self._local_metrics_readers:
            reader.local_metrics = self._own.read
        self._executed = 0
        self._sizes = ExecutionSize(
            stage, function, stream, callbacks.callbacks, clock=time.monotonic
        )

    def begin(self, *, epochs: int, initial_epoch: int, steps: int | None) -> None:
        """See `FitReporter`."""
        super().begin(epochs=epochs, initial_epoch=initial_epoch, steps=steps)
        self._sizes.begin(epochs - initial_epoch)

    def steps_until_event(
        self,
        executor: StepRunner,
        cadence: MetricsSchedule,
        checkpoints: CheckpointManager | NullCheckpointManager,
    ) -> int | None:
        """How many steps the next execution may have: what looks at the state ends it."""
        edges = [executor.steps_until_sample()]
        if self._local is not None:
            edges.append(self._local.steps_until_sync)
        if self._sizes.is_automatic:
            edges += [cadence.steps_until_due, checkpoints.steps_until_due]
        if self._profiler is not None:
            edges.append(self._profiler.steps_until_boundary(self._step))
        return min((edge for edge in edges if edge is not None), default=None)

    def is_due(self, cadence: MetricsSchedule, steps_done: int) -> bool:
        """Whether to read the metrics after `steps_done` steps of this epoch.

        What is due between two syncs of local steps is read at the next one; until the first of an
        epoch, the logs are this worker's own.
        """
        is_due = cadence.is_due(steps_done)
        is_due = is_due or self._keeper.needs_reading or self._sizes.needs_reading
        if self._local is None:
            return is_due
        is_due = is_due or self._waiting_for_sync
        self._waiting_for_sync = is_due and not self._local.may_exchange
        if self._waiting_for_sync:
            self._sizes.postpone()
        return is_due and (self._local.may_exchange or not self._was_read)

    def begin_epoch(self, epoch: int) -> None:
        """See `FitReporter`."""
        self._own.kept = None
        self._was_read = False
        super().begin_epoch(epoch)
        self._keeper.begin_epoch()

    def begin_batch(self, batch: int) -> None:
        """A batch begins."""
        phase_tracker.enter("callbacks")
        self._callbacks.on_train_batch_begin(batch)
        phase_tracker.enter("compute")

    def execute(self, executor: StepRunner, iterator: Any, steps: int) -> tuple[int, Outputs]:
        """Run steps; see `StepRunner.run`."""
        profiler, step = self._profiler, self._step
        profiled = nullcontext() if profiler is None else profiler.around(step, steps)
        with annotate_errors("train", self._topology, step), profiled:
            done, outputs = executor.run(iterator, steps, self._keeper.last_step(steps))
            if profiler is not None:
                profiler.wait_for(outputs)
        self._executed = done
        self._own.outputs = outputs
        self._keeper.executed(done)
        self.trained(self._step + done)
        return done, outputs

    def read(
        self, reader: MetricReader, cadence: MetricsSchedule, outputs: Outputs, steps_done: int
    ) -> Mapping[str, float]:
        """Read the metrics in the middle of an epoch."""
        if self._local is not None and not self._local.may_exchange:
            return reader.read_local(outputs)
        self._was_read = True
        notes = (cadence.propose(steps_done), *self._keeper.propose(), self._sizes.propose(outputs))
        logs, (upcoming, *others, size) = reader.read(outputs, notes)
        cadence.agree(upcoming)
        self._keeper.agree(*others)
        self._sizes.agree(size)
        self.metrics(logs, steps_done - 1)
        return logs

    def read_last(self, reader: MetricReader, outputs: Outputs) -> dict[str, float]:
        """Read the metrics where an epoch ends."""
        if self._local_metrics_readers:
            self._own.keep()  # a validation begins with fresh ones
        notes = (0.0, *self._keeper.propose(epoch_ends=True), self._sizes.propose(outputs))
        logs, (_, *others, size) = reader.read(outputs, notes, is_last=True)
        self._keeper.agree(*others)
        self._sizes.agree(size)
        return logs

    def end_batch(self, batch: int, logs: Mapping[str, float]) -> None:
        """A batch, or the last one of several run together, has ended."""
        phase_tracker.enter("callbacks")
        self._callbacks.on_train_batch_end(batch, logs)
        phase_tracker.enter("compute")
        self._sizes.executed(self._executed)
        self._keeper.end_lap(self._executed, self._stream.samples(self._executed))
        self._report(self._keeper.close_if_due(self._step))

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """See `FitReporter`."""
        super().end_epoch(epoch, logs)
        self._report(self._keeper.close_if_due(self._step))

    def end(self, logs: Mapping[str, Any]) -> None:
        """See `FitReporter`."""
        self._report(self._keeper.close(self._step))
        if self._profiler is not None:
            self._profiler.stop()
        super().end(logs)


@dataclass
class LocalMetrics:
    """What this worker alone has counted, for callbacks that compare workers.

    Attributes:
        reader: reads the metrics.
        outputs: what the last step returned.
        kept: where an epoch has ended, what was counted in it.
    """

    reader: MetricReader
    outputs: Outputs = ()
    kept: dict[str, float] | None = None

    def read(self) -> dict[str, float]:
        """The metrics of this epoch so far over this worker's samples."""
        return self.reader.read_local(self.outputs) if self.kept is None else self.kept

    def keep(self) -> None:
        """Have `read` give what it gives now, until the next epoch."""
        self.kept = self.reader.read_local(self.outputs)


def _training_events(*, is_chief: bool) -> TrainingEvents | None:
    event_log = worker_event_log(os.environ)
    if event_log is None:
        return None
    return TrainingEvents(event_log, fit=next(_fits), is_chief=is_chief, clock=time.monotonic)


def _value(number: Any) -> Any:
    """A variable's or tensor's value; replicated variables are read by `numpy` alone."""
    return number.numpy() if hasattr(number, "numpy") else number


def _reason(callbacks: list[Any]) -> str:
    """Who ended the training, where that shows."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.stopped_epoch > 0:
            return f"EarlyStopping: {callback.monitor} got no better for {callback.wait} epochs"
    return "model.stop_training was set"


# The chief decides by its clock. What it decides travels in the notes of a reading of the
# metrics, which is a collective anyway, so all workers time the same steps and close their
# numbers at the same step.

SECONDS = 10.0
"""Between two `throughput` records."""

_SPLITS_IN_A_WINDOW = 10
_LEAST_SECONDS_OF_AN_EPOCH = 1.0
_TRACING_PAYS_AFTER = 100
_UNKNOWN = -1


class StepTimer:
    """Times the steps of one `fit`, where some worker wants that."""

    def __init__(
        self,
        stage: CallContext,
        timed: TimedSteps,
        *,
        listeners: Sequence[ThroughputListener],
        is_recorded: bool,
        clock: Callable[[], float],
        phases: Callable[[], dict[Phase, float]],
    ) -> None:
        """Agree with the other workers on what is wanted: a small gather.

        Args:
            stage: where the `fit` runs.
            timed: runs the timed steps.
            listeners: the callbacks that want to know.
            is_recorded: whether records are written, as under `phalanx run`.
            clock: seconds, increasing.
            phases: seconds that this process has spent in each phase so far.
        """
        self._stage = stage
        self._timed = timed
        self._clock = clock
        self._every = min([SECONDS, *(each.every_n_seconds for each in listeners)])
        wants_workers = any(each.wants_workers for each in listeners)
        needs = (is_recorded or bool(listeners), bool(listeners), wants_workers)
        found = on_any_worker(stage.strategy, stage.topology, *needs)
        self.is_on, self._wants_communication, self._gathers = found
        self._meter = ThroughputMeter(clock=clock, phases=phases)
        self._started = clock()
        self._trained = 0
        self._next_split: int | None = None
        self._measures_communication = False
        self._is_due = False

    def begin_epoch(self) -> None:
        """The first step of an epoch begins now."""
        self._meter.begin_epoch()

    def last_step(self, steps: int) -> Callable[[Any], Outputs] | None:
        """What runs the last of the next `steps` steps, if it is to be timed."""
        if self._next_split is None or self._trained + steps < self._next_split:
            return None
        return self._run_timed

    def _run_timed(self, iterator: Any) -> Outputs:
        outputs = self._timed.run(iterator, communication=self._measures_communication)
        if self._timed.traced:
            self._meter.discard_interval()
        self._meter.split(self._timed.last)
        return outputs

    def propose(self, *, epoch_ends: bool = False) -> tuple[float, float, float]:
        """What the chief broadcasts: steps to the next timed one, and two flags.

        The flags: whether numbers are due, and whether to measure communication from now on.
        """
        if not self.is_on or not self._meter.is_warm:
            return 0.0, 0.0, 0.0
        ahead = 0.0
        if self._next_split is None:
            ahead = self._every / _SPLITS_IN_A_WINDOW / max(self._meter.last_lap, 1e-6)
            ahead = max(1.0, min(float(int(ahead)), 10_000.0))
        is_due = self._meter.seconds >= self._every
        if epoch_ends and self._meter.is_split:
            is_due = is_due or self._meter.seconds >= _LEAST_SECONDS_OF_AN_EPOCH
        return ahead, float(is_due), float(self._wants_communication or self._has_paid())

    def _has_paid(self) -> bool:
        """Whether tracing the step once more is little next to the training so far."""
        passed = self._clock() - self._started
        return passed >= _TRACING_PAYS_AFTER * self._first_seconds

    def agree(self, ahead: float, is_due: float, communication: float) -> None:
        """Take over what the chief proposed."""
        if ahead > 0:
            self._next_split = self._trained + int(ahead)
        self._is_due = self._is_due or is_due > 0
        self._measures_communication = communication > 0

    def executed(self, steps: int) -> None:
        """So many steps were run; the lap's end follows."""
        if self._trained == 0:
            self._first_seconds = self._clock() - self._started
        self._trained += steps
        if self._next_split is not None and self._trained >= self._next_split:
            self._next_split = None  # done, or left to who looked at the gradients

    @property
    def needs_reading(self) -> bool:
        """Whether the chief must say when to time the next step; the same on all workers."""
        return self.is_on and self._meter.is_warm and self._next_split is None

    def end_lap(self, steps: int, samples: int | None) -> None:
        """All that belongs to an execution of so many steps has been done."""
        if not self.is_on:
            return
        if samples is None and (batch := self._timed.last.batch) is not None:
            samples = batch * steps
        self._meter.lap(steps, samples)

    def close_if_due(self, step: int) -> ThroughputNumbers | None:
        """The numbers up to `step`, if it is time; workers are asked for theirs."""
        return self.close(step) if self._is_due else None

    def close(self, step: int) -> ThroughputNumbers | None:
        """The numbers up to `step`, if there are any; all workers must close at the same."""
        self._is_due = False
        if self._meter.steps == 0:
            return None
        memory = resident_bytes()
        workers = self._everyones_times(memory) if self._gathers else []
        numbers = self._meter.close(step=step, memory_bytes=memory, workers=workers)
        self._meter.begin_epoch()  # closing belongs to no step
        return numbers

    def _everyones_times(self, memory: int) -> list[WorkerTimes]:
        topology = self._stage.topology
        mine = self._meter.own_times(topology.rank, memory)
        parts = (mine.input, mine.compute, mine.callbacks, mine.communication)
        row = np.array([*map(_nanoseconds, parts), memory], np.int64)
        if not topology.has_peers:
            return [mine]
        rows = all_gather_rows(self._stage.strategy, topology, row)
        return [_times(rank, row) for rank, row in enumerate(rows)]


def _nanoseconds(seconds: float | None) -> int:
    return _UNKNOWN if seconds is None else math.ceil(seconds * 1e9)


def _times(rank: int, row: Any) -> WorkerTimes:
    *parts, memory = (int(value) for value in row)
    input_, compute, callbacks, communication = (
        None if part == _UNKNOWN else part / 1e9 for part in parts
    )
    return WorkerTimes(
        rank=rank,
        input=input_,
        compute=compute,
        callbacks=callbacks,
        communication=communication,
        memory_bytes=memory,
    )
