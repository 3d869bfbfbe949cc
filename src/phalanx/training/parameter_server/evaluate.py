"""`evaluate` on a cluster whose workers go each at its own pace: every sample once."""

from __future__ import annotations

import time
from typing import Any

from phalanx.errors import DataError
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.context import CallContext
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.parameter_server.metric_accumulator import MetricAccumulator
from phalanx.training.parameter_server.ps_context import build_on_servers
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_data import WorkerData, worker_data
from phalanx.training.parameter_server.worker_step import WorkerStep


def evaluation_on_servers(
    stage: CallContext, x: Any, y: Any, *, steps: int | None, **options: Any
) -> ServerEvaluation:
    """An evaluation of the stage's model; `options` are those of `worker_data`."""
    return ServerEvaluation(
        stage, worker_data(stage.strategy, x, y, seed=0, steps=steps, **options), steps
    )


class ServerEvaluation:
    """Evaluates a model on one source, as often as asked."""

    def __init__(self, stage: CallContext, data: WorkerData, steps: int | None) -> None:
        """Make the data on the workers; nothing is evaluated yet."""
        self._model = stage.model
        build_on_servers(stage, data.batch_spec)
        stage.model.reset_metrics()
        self._step = WorkerStep(stage.model, "test", data, stage.strategy)
        self._dispatch = StepScheduler(stage.strategy, self._step, data)
        self._requested = steps
        self.steps = steps or data.steps

    def run(self, callbacks: Any, *, shows_progress: bool = False) -> dict[str, float]:
        """Evaluate once, from fresh metrics.

        Raises:
            DataError: there was no batch to evaluate.
        """
        model = self._model
        cadence = MetricsSchedule(
            callbacks.callbacks, "test", shows_progress=shows_progress, clock=time.monotonic
        )
        totals = MetricAccumulator(model, self._step)
        logs: dict[str, float] = {}
        model.stop_evaluating = False
        with phase_tracker.during("validation"):
            callbacks.on_test_begin()
            self._dispatch.start(0)
            for result in self._dispatch.epoch(self._requested):
                phase_tracker.enter("validation")  # again: it continues
                callbacks.on_test_batch_begin(totals.steps)
                totals.add(result)
                if cadence.is_due(totals.steps):
                    logs = totals.logs()
                    cadence.agree(cadence.propose(totals.steps))
                callbacks.on_test_batch_end(totals.steps - 1, logs)
                if model.stop_evaluating:
                    self._dispatch.stop()
            self._dispatch.end_pass()
            if not totals.steps:
                raise DataError("Asked to evaluate, but the data gave no batch. Pass at least one.")
            totals.store()
            logs = totals.logs()
            callbacks.on_test_end(logs)
        return logs
