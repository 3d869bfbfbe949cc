"""What is seen of a `fit` from beside it: its phases, its pace, its records."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras

from phalanx.observe.fit_recorder import FitRecorder
from phalanx.seam.models import steps_trained
from phalanx.training.cadence import ReadingCadence
from phalanx.training.executor import Executor
from phalanx.training.failing_step import told_where
from phalanx.training.metrics import MetricReader, reader_of
from phalanx.training.prepare import Stage
from phalanx.training.profiling import own_profiler
from phalanx.training.step import Outputs, StepFunction
from phalanx.training.timed import TimedSteps
from phalanx.training.timekeeper import Timekeeper
from phalanx.worker.journal import own_journal
from phalanx.worker.pulse import pulse

_fits = itertools.count()


class FitWatch:
    """Stands between a `fit` and its callbacks, readings and executions, and takes notes.

    Keeps this process's pulse, times steps, hands the numbers to the callbacks that want
    them and, under `phalanx run`, to the records.
    """

    def __init__(self, stage: Stage, function: StepFunction, stream: Any, callbacks: Any) -> None:
        """Get ready; all workers must come here together."""
        self._model = stage.model
        self._stream = stream
        self._callbacks = callbacks
        self._recorder = _recorder(stage)
        self._listeners = [c for c in callbacks.callbacks if hasattr(c, "take_throughput")]
        self._is_chief = stage.place.is_chief
        self._place = stage.place
        self._profiler = own_profiler()
        self._keeper = Timekeeper(
            stage,
            TimedSteps.of(function),
            listeners=self._listeners,
            is_recorded=self._recorder is not None,
            clock=time.monotonic,
            phases=pulse.totals,
        )
        self._own = OwnMetrics(reader_of(stage.model, function))
        for callback in callbacks.callbacks:
            if hasattr(callback, "own_metrics"):
                callback.own_metrics = self._own.read
        self._epoch = 0
        self._step = 0
        self._executed = 0

    def steps_until_look(self, executor: Executor) -> int | None:
        """How many steps the next execution may have: who looks at steps ends it."""
        edges = [executor.steps_until_look()]
        if self._profiler is not None:
            edges.append(self._profiler.steps_until_edge(self._step))
        return min((edge for edge in edges if edge is not None), default=None)

    def is_due(self, cadence: ReadingCadence, steps_done: int) -> bool:
        """Whether to read the metrics after `steps_done` steps of this epoch."""
        return cadence.is_due(steps_done) or self._keeper.needs_reading

    def begin(self, *, epochs: int, initial_epoch: int) -> None:
        """Training begins; callbacks have restored what they restore."""
        optimizer = getattr(self._model, "optimizer", None)
        self._step = steps_trained(self._model)
        pulse.at(step=self._step, epoch=initial_epoch)
        if self._recorder is not None:
            self._recorder.start(
                epochs=epochs,
                initial_epoch=initial_epoch,
                steps=self._stream.steps,
                model=self._model.name,
                parameters=self._model.count_params() if self._model.built else None,
                optimizer=None if optimizer is None else type(optimizer).__name__,
            )

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self._epoch = epoch
        self._own.kept = None
        pulse.at(epoch=epoch)
        if self._recorder is not None:
            self._recorder.epoch_begins()
        with pulse.during("callbacks"):
            self._callbacks.on_epoch_begin(epoch)
        self._keeper.begin_epoch()

    def begin_batch(self, batch: int) -> None:
        """A batch begins."""
        pulse.enter("callbacks")
        self._callbacks.on_train_batch_begin(batch)
        pulse.enter("compute")

    def execute(self, executor: Executor, iterator: Any, steps: int) -> tuple[int, Outputs]:
        """Run steps; see `Executor.run`."""
        profiler, step = self._profiler, self._step
        looks = nullcontext() if profiler is None else profiler.around(step, steps)
        with told_where("train", self._place, step), looks:
            done, outputs = executor.run(iterator, steps, self._keeper.last_step(steps))
            if profiler is not None:
                profiler.wait_for(outputs)
        self._executed = done
        self._own.outputs = outputs
        self._keeper.executed(done)
        self._step += done
        pulse.at(step=self._step)
        return done, outputs

    def read(
        self, reader: MetricReader, cadence: ReadingCadence, outputs: Outputs, steps_done: int
    ) -> Mapping[str, float]:
        """Read the metrics in the midst of an epoch."""
        notes = (cadence.propose(steps_done), *self._keeper.propose())
        logs, (upcoming, *others) = reader.read(outputs, notes)
        cadence.agree(upcoming)
        self._keeper.agree(*others)
        if self._recorder is not None:
            where = {"step": self._step, "epoch": self._epoch, "batch": steps_done - 1}
            self._recorder.metrics(logs, self._learning_rate, **where)
        return logs

    def read_last(self, reader: MetricReader, outputs: Outputs) -> dict[str, float]:
        """Read the metrics where an epoch ends."""
        if any(hasattr(callback, "own_metrics") for callback in self._callbacks.callbacks):
            self._own.keep()  # a validation begins with fresh ones
        logs, (_, *others) = reader.read(outputs, (0.0, *self._keeper.propose(epoch_ends=True)))
        self._keeper.agree(*others)
        return logs

    def end_batch(self, batch: int, logs: Mapping[str, float]) -> None:
        """A batch, or the last one of several run together, has ended."""
        pulse.enter("callbacks")
        self._callbacks.on_train_batch_end(batch, logs)
        pulse.enter("compute")
        self._keeper.end_lap(self._executed, self._stream.samples(self._executed))
        self._tell(self._keeper.close_if_due(self._step))

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """An epoch ended, its validation included."""
        with pulse.during("callbacks"):
            self._callbacks.on_epoch_end(epoch, logs)
        self._tell(self._keeper.close_if_due(self._step))
        if self._recorder is not None:
            self._recorder.epoch(logs, self._learning_rate(), step=self._step, epoch=epoch)

    def stopped(self, epoch: int) -> None:
        """Training ends before its last epoch."""
        if self._recorder is not None:
            self._recorder.stop(_reason(self._callbacks.callbacks), step=self._step, epoch=epoch)

    def end(self, logs: Mapping[str, Any]) -> None:
        """Training has ended."""
        self._tell(self._keeper.close(self._step))
        if self._profiler is not None:
            self._profiler.stop()
        with pulse.during("callbacks"):
            self._callbacks.on_train_end(logs)
        if self._recorder is not None:
            self._recorder.end(step=self._step, epoch=self._epoch)

    def _tell(self, numbers: Any) -> None:
        if numbers is None:
            return
        if self._recorder is not None:
            self._recorder.throughput(numbers.to_record())
        with pulse.during("callbacks"):
            for listener in self._listeners:
                listener.take_throughput(numbers, is_chief=self._is_chief)

    def _learning_rate(self) -> float | None:
        rate = getattr(getattr(self._model, "optimizer", None), "learning_rate", None)
        return None if rate is None else float(_value(rate))


@dataclass
class OwnMetrics:
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
        return self.reader.read_own(self.outputs) if self.kept is None else self.kept

    def keep(self) -> None:
        """Have `read` give what it gives now, until the next epoch."""
        self.kept = self.reader.read_own(self.outputs)


def _recorder(stage: Stage) -> FitRecorder | None:
    journal = own_journal(os.environ)
    if journal is None:
        return None
    return FitRecorder(
        journal, fit=next(_fits), is_chief=stage.place.is_chief, clock=time.monotonic
    )


def _value(number: Any) -> Any:
    """A variable's or tensor's value; replicated variables are read by `numpy` alone."""
    return number.numpy() if hasattr(number, "numpy") else number


def _reason(callbacks: list[Any]) -> str:
    """Who ended the training, where that shows."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.stopped_epoch > 0:
            return f"EarlyStopping: {callback.monitor} got no better for {callback.wait} epochs"
    return "model.stop_training was set"
