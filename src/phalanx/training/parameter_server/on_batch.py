"""`train_on_batch` and `test_on_batch` on a cluster: one batch, sent to one worker, waited for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from phalanx.data.batches import with_free_batch_axis
from phalanx.data.dataset_identity import DatasetIdentity
from phalanx.data.iterator_position import DataPosition
from phalanx.keras_compat.data_adapters import spec_of
from phalanx.monitoring.phase_tracker import phase_tracker
from phalanx.training.parameter_server.metric_accumulator import MetricAccumulator
from phalanx.training.parameter_server.ps_context import (
    build_on_servers,
    coordinator_of,
    ps_call_context,
)
from phalanx.training.parameter_server.worker_step import Kind, StepResult, WorkerStep


class OneBatch:
    """A batch that comes with its step; `WorkerData` for one step."""

    ends_by_worker = False
    steps: int | None = 1
    identity = DatasetIdentity()

    def __init__(self, data: Any) -> None:
        """Look at nothing but its shapes and dtypes."""
        self.batch_spec = with_free_batch_axis(spec_of(data))
        self._data = data

    def on_workers(self, coordinator: Any) -> Any:
        """The batch itself, which is sent to whoever takes the step."""
        del coordinator
        return self._data

    def ticket(self, position: int) -> int:
        """There is one."""
        return position

    def next_pass(self) -> None:
        """There is none."""

    def position(self, *, batch: int, trained: int) -> DataPosition:
        """Nothing that could be resumed."""
        return DataPosition(
            batch=batch, trained=trained, passes=0, taken=None, learned=None, seed=None
        )

    def state(self) -> None:
        """Nothing."""

    def restore(self, position: DataPosition, state: Mapping[str, Any] | None) -> None:
        """Nothing to continue with."""

    def unreported(self) -> list[Any]:
        """Nothing: the step is taken again."""
        return []

    def is_news(self, worker: int, batch: int) -> bool:
        """It is."""
        return True

    def with_batch(
        self, iterator: Any, ticket: Any, worker: Any, run: Callable[[Any, Any], Any]
    ) -> Any:
        """Run the step on the batch."""
        del worker
        return run(iterator, ticket)


def on_batch_of_servers(model: Any, kind: Kind, data: Any) -> dict[str, float]:
    """One step of one worker; the metrics over its batch.

    Args:
        model: the model, compiled.
        kind: what the step does.
        data: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, tensors.
    """
    trains = kind == "train"
    with ps_call_context(model, trains=trains) as stage, phase_tracker.during("compute"):
        batch = OneBatch(data)
        build_on_servers(stage, batch.batch_spec, trains=trains)
        model.reset_metrics()
        step = _step_for(model, kind, batch, stage.strategy)
        coordinator = coordinator_of(stage.strategy)
        given = (data, tf.constant(0, tf.int64))
        while True:
            remote = coordinator.schedule(step.function, args=given)
            try:
                result = step.read(remote.fetch())
                break
            except tf.errors.UnavailableError:
                coordinator.join()  # raises where more than a worker was lost
        assert isinstance(result, StepResult)
        totals = MetricAccumulator(model, step)
        totals.add(result)
        totals.store()
        return totals.logs()


def _step_for(model: Any, kind: Kind, data: OneBatch, strategy: Any) -> Any:
    """The one that the model has, so that it is traced once for all batches."""
    name = f"{kind}_function"
    existing = getattr(model, name)
    spec = keras.tree.flatten(data.batch_spec)
    if isinstance(existing, _CachedStep) and existing.spec == spec:
        return existing.step
    step = WorkerStep(model, kind, data, strategy)
    setattr(model, name, _CachedStep(step, spec))
    return step


class _CachedStep:
    """A traced step, cached in the place of Keras's function, which `compile` drops."""

    def __init__(self, step: WorkerStep, spec: Any) -> None:
        self.step = step
        self.spec = spec
