"""What a worker does with one batch, and what it returns to the chief."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

from phalanx.gradients.comm_timer import now
from phalanx.keras_compat.graph_ops import ops_created_by_caller
from phalanx.keras_compat.optimizer_clippers import innermost
from phalanx.keras_compat.ps_updates import recording_updates
from phalanx.keras_compat.ps_variables import OwnValues, step_on_servers, value_of
from phalanx.training.parameter_server.ps_context import this_worker
from phalanx.training.parameter_server.worker_data import WorkerData

Kind = Literal["train", "test", "predict"]
_HEAD = 6


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step came to.

    Attributes:
        samples: how many its batch held.
        worker: which worker trained it.
        batch: the batch's number.
        staleness: steps of other workers between its reading the variables and its writing.
        seconds: from its having the batch to its having the gradient, reading the variables
            included; 0 where nothing is trained.
        gradient_norm: of the worker's own gradient, as it came, before it was clipped.
        returned: the numbers that the model's step returned next to its metrics, by name.
        states: the metrics' variables, as after this batch alone.
        outputs: what `predict_step` returned, flat.
    """

    samples: int
    worker: int
    batch: int
    staleness: int
    seconds: float
    gradient_norm: float
    returned: dict[str, float]
    states: list[Any]
    outputs: list[Any]


class WorkerStep:
    """The function that workers run, for one model and one kind of data."""

    def __init__(self, model: Any, kind: Kind, data: WorkerData, strategy: Any) -> None:
        """Get ready; the model is built, and its metrics are as new.

        Nothing is traced before the first step is scheduled.
        """
        self.model = model
        self._step = getattr(model, f"{kind}_step")
        self._kind = kind
        self._data = data
        self._strategy = strategy
        self.metric_variables = _unique(v for m in model.metrics for v in m.variables)
        self._initial = [tf.convert_to_tensor(v.value).numpy() for v in self.metric_variables]
        self._returned: list[str] = []
        self.structure: Any = None
        plain = tf.autograph.experimental.do_not_convert(self._run_on_worker)
        self.function = tf.function(plain)

    def read(self, flat: Any) -> StepResult | int:
        """What a step that was fetched came to, or which worker had no batch left for it."""
        numbers, *outputs = flat
        if len(numbers) == 1:
            return int(numbers[0])
        samples, worker, batch, staleness = (int(n) for n in numbers[: _HEAD - 2])
        end = _HEAD + len(self._returned)
        states = []
        for initial in self._initial:
            begin, end = end, end + initial.size
            states.append(numbers[begin:end].reshape(initial.shape))
        return StepResult(
            samples=samples,
            worker=worker,
            batch=batch,
            staleness=staleness,
            seconds=float(numbers[_HEAD - 2]),
            gradient_norm=float(numbers[_HEAD - 1]),
            returned=dict(zip(self._returned, numbers[_HEAD:], strict=False)),
            states=states,
            outputs=outputs,
        )

    @property
    def initial_states(self) -> list[Any]:
        """The metrics' variables before any batch."""
        return self._initial

    def _run_on_worker(self, iterator: Any, ticket: Any) -> Any:
        worker = this_worker()  # out here: a branch of a condition cannot ask

        def run(data: Any, batch: Any) -> list[Any]:
            return self._run(data, batch, worker)

        def step(iterator: Any, ticket: Any) -> Any:
            return self._data.with_batch(iterator, ticket, worker, run)

        return self._strategy.run(step, args=(iterator, ticket))

    def _run(self, data: Any, batch: Any, worker: Any) -> list[Any]:
        """One batch: a vector of numbers, float64, then the outputs.

        They are there when all that the step writes is written.
        """
        with tf.control_dependencies(_tensors(data)):
            started, began = self._count(), now()
        made = ops_created_by_caller(tf.compat.v1.get_default_graph())
        with (
            tf.control_dependencies([started, began]),
            step_on_servers(self.metric_variables),
            recording_updates() as notes,
        ):
            returned, states = self._with_own_metrics(data)
        stale = norm = seconds = tf.zeros([])
        if notes:
            stale, norm, seconds = notes[0] - started, notes[1], notes[2] - began
        if self._kind == "predict":
            self.structure, logs = returned, {}
        else:
            logs = _flat(returned) if isinstance(returned, dict) else {}
        self._returned = list(logs)
        head = [_rows(data), worker, batch, stale, seconds, norm, *logs.values()]
        written = [op for op in made() if _is_of_a_variable(op)]
        with tf.control_dependencies(written):
            numbers = [tf.reshape(tf.cast(n, tf.float64), [-1]) for n in [*head, *states]]
            outputs = keras.tree.flatten(returned) if self._kind == "predict" else []
            return [tf.concat(numbers, 0), *map(tf.identity, outputs)]

    def _with_own_metrics(self, data: Any) -> tuple[Any, list[Any]]:
        """Run the model's step with metrics that begin and end with this batch."""
        initial = [tf.constant(v) for v in self._initial]
        own = list(zip(self.metric_variables, initial, strict=True))
        with OwnValues(state_mapping=own, collect_losses=True) as scope:
            returned = self._step(data)
            states = [scope.get_current_value(v) for v in self.metric_variables]
        # What else the step assigned, such as moving statistics, belongs to all workers.
        mine = {id(v) for v in self.metric_variables}
        for variable in _unique(self.model.variables):
            if scope.holds(variable) and id(variable) not in mine:
                value_of(variable).assign(scope.get_current_value(variable))
        return returned, states

    def _count(self) -> Any:
        optimizer = getattr(self.model, "optimizer", None)
        if self._kind != "train" or optimizer is None:
            return tf.zeros([], tf.int64)
        return tf.cast(tf.identity(value_of(innermost(optimizer).iterations)), tf.int64)


def _rows(data: Any) -> Any:
    first = next(leaf for leaf in keras.tree.flatten(data) if leaf is not None)
    return tf.shape(first)[0]


def _tensors(data: Any) -> list[Any]:
    """What can be waited for."""
    leaves = tf.nest.flatten(keras.tree.flatten(data), expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf)]


def _is_of_a_variable(operation: Any) -> bool:
    """Whether it reads or writes a variable."""
    return any(tensor.dtype == tf.resource for tensor in operation.inputs)


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(_flat(value) if isinstance(value, dict) else {name: value})
    return flat


def _unique(variables: Any) -> list[Any]:
    return list({id(v): v for v in variables}.values())
