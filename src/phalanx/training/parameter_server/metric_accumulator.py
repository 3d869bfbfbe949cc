"""Metrics over all steps of an epoch, from what each step reported: nothing can be lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.keras_compat.ps_variables import value_of
from phalanx.training.parameter_server.worker_step import StepResult, WorkerStep


class MetricAccumulator:
    """Adds up steps, each counted once however many workers tried it."""

    def __init__(self, model: Any, step: WorkerStep) -> None:
        """Begin with nothing."""
        self._model = model
        self._variables = step.metric_variables
        self._initial = [np.asarray(v, np.float64) for v in step.initial_states]
        self._states = [v.copy() for v in self._initial]
        self._touched: set[int] = set()
        self._returned: dict[str, float] = {}
        self._stale = 0
        self._norms = 0.0
        self._greatest_norm = 0.0
        self.steps = 0
        self.samples = 0

    def add(self, result: StepResult) -> None:
        """Count one step."""
        self.steps += 1
        self.samples += result.samples
        self._stale += result.staleness
        self._norms += result.gradient_norm
        self._greatest_norm = float(np.fmax(self._greatest_norm, result.gradient_norm))
        for i, (state, initial) in enumerate(zip(result.states, self._initial, strict=True)):
            change = state - initial
            self._states[i] = self._states[i] + change
            if np.any(change):
                self._touched.add(id(self._variables[i]))
        for name, value in result.returned.items():
            self._returned[name] = self._returned.get(name, 0.0) + value * result.samples

    @property
    def staleness(self) -> float:
        """The mean over the steps of how many others came between their reading and writing."""
        return self._stale / max(self.steps, 1)

    def gradient_logs(self) -> dict[str, float]:
        """Of the norms of the workers' own gradients the mean and the greatest."""
        return {
            "gradient_norm": self._norms / max(self.steps, 1),
            "gradient_norm_max": self._greatest_norm,
        }

    def logs(self) -> dict[str, float]:
        """The metrics so far; what else the model's step returned, weighted by samples."""
        with tf.device("CPU:0"):
            states = [
                (v, tf.constant(s, v.dtype))
                for v, s in zip(self._variables, self._states, strict=True)
            ]
            with keras.StatelessScope(state_mapping=states):
                results = {k: _number(v) for k, v in self._model.get_metrics_result().items()}
                stale = self._untouched()
        if not self._returned:
            return results
        fresh = {name: value for name, value in results.items() if name not in stale}
        means = {n: float(v / max(self.samples, 1)) for n, v in self._returned.items()}
        return {name: fresh.get(name, mean) for name, mean in means.items()}

    def store(self) -> None:
        """Let the metrics themselves hold what was counted, for whoever asks them."""
        for variable, state in zip(self._variables, self._states, strict=True):
            variable.assign(state.astype(variable.dtype))

    def read(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What was counted: numbers as JSON, and the metrics' states by number."""
        numbers = {
            "steps": self.steps,
            "samples": self.samples,
            "staleness": self._stale,
            "norms": self._norms,
            "greatest_norm": self._greatest_norm,
            "returned": dict(self._returned),
            "touched": [i for i, v in enumerate(self._variables) if id(v) in self._touched],
        }
        return numbers, {str(i): state for i, state in enumerate(self._states)}

    def write(self, numbers: Mapping[str, Any], states: Mapping[str, np.ndarray]) -> None:
        """Continue from what `read` gave."""
        self.steps, self.samples = int(numbers["steps"]), int(numbers["samples"])
        self._stale = int(numbers["staleness"])
        self._norms, self._greatest_norm = numbers["norms"], numbers["greatest_norm"]
        self._returned = dict(numbers["returned"])
        self._touched = {id(self._variables[i]) for i in numbers["touched"]}
        self._states = [np.array(states[str(i)]) for i in range(len(self._states))]

    def take_over(self, steps: int) -> None:
        """Continue from the values of the metrics, after `steps` steps of another strategy."""
        self.steps = steps
        self._states = [np.asarray(value_of(v).numpy(), np.float64) for v in self._variables]
        self._touched = {
            id(v)
            for v, state, initial in zip(self._variables, self._states, self._initial, strict=True)
            if np.any(state != initial)
        }

    def _untouched(self) -> set[str]:
        """Names of results of metrics that no step updated."""
        names: set[str] = set()
        for metric in self._model.metrics:
            if not any(id(v) in self._touched for v in metric.variables):
                result = metric.result()
                names.update(result if isinstance(result, dict) else [metric.name])
        return names


def _number(value: Any) -> Any:
    array = value.numpy() if hasattr(value, "numpy") else value
    return float(array) if getattr(array, "ndim", 0) == 0 else array
