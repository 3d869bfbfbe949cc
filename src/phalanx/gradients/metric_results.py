"""What a step returns of its metrics: their results, and what it computes of results alone.

Each replica's metrics count its own samples. So `{"loss": self.tracker.result()}` and
`{"rmse": ops.sqrt(self.mse.result())}` are computed again, of what all replicas have counted. What
needs a result from before an update, as `mse.result() - before` does, can not be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.axis_sizes import key_of
from phalanx.gradients.graph_walk import is_symbolic
from phalanx.gradients.recomputed import compute_again, graph_of, is_pure

_ASSIGNS = ("AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp")


@dataclass(frozen=True)
class MetricResult:
    """What a metric reports, or one entry of the dictionary that it reports."""

    metric: Any
    names: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[Any, ...]:
        """The metrics that it is computed of."""
        return (self.metric,)

    def compute(self) -> Any:
        """The result, of what the metric's variables are now.

        A `result` that makes a dictionary of what `super().result()` gives has two results. Of
        these, the one that was noted is the first that has these names and no others.
        """
        kinds: list[Any] = [kind for kind in type(self.metric).__mro__ if "result" in vars(kind)]
        for kind in kinds:
            found = functools.reduce(_entry, self.names, kind.result(self.metric))
            if found is not None and not isinstance(found, dict):
                return found
        raise KeyError(f"{self.metric.name}: {'/'.join(self.names)}")


def _entry(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, dict) else None


@dataclass(frozen=True, kw_only=True)
class DerivedResult:
    """What a step computes of results of metrics and of constants, such as a root or a sum.

    Attributes:
        graph: the operations that compute it.
        sources: the results, by the names of their tensors in `graph`.
        output: the name of its own tensor in `graph`.
    """

    graph: tf.compat.v1.GraphDef
    sources: Mapping[str, MetricResult]
    output: str

    @property
    def metrics(self) -> tuple[Any, ...]:
        """The metrics that it is computed of."""
        return tuple(source.metric for source in self.sources.values())

    def compute(self) -> Any:
        """The value, of what the metrics' variables are now; in a graph only."""
        values = {
            name: tf.convert_to_tensor(source.compute()) for name, source in self.sources.items()
        }
        return compute_again(self.graph, values, self.output, name="derived")


def derived_result(value: Any, results: Iterable[tuple[Any, MetricResult]]) -> DerivedResult | None:
    """How a value of a step follows from results of metrics; None where it needs anything else.

    It is None also where a metric is updated or reset after its result is read.

    Args:
        value: what the step returns.
        results: the tensors that metrics gave as their results, each with the result.
    """
    known = {key_of(noted): result for noted, result in results if is_symbolic(noted)}
    if not known or not is_symbolic(value):
        return None
    operations: dict[str, Any] = {}
    sources, stack = {}, [value]
    while stack:
        tensor = stack.pop()
        operation = tensor.op
        if (result := known.get(key_of(tensor))) is not None:
            if is_of_past_state(tensor):
                return None
            sources[tensor.name] = result
        elif operation.name not in operations:
            if not is_pure(operation):
                return None
            operations[operation.name] = operation
            stack.extend(operation.inputs)
    if not sources:
        return None
    graph = graph_of(operations.values())
    return DerivedResult(graph=graph, sources=sources, output=value.name)


def reads_of(value: Any) -> Iterator[Any]:
    """What a tensor reads of variables; nothing where it is not symbolic."""
    stack, seen = [value] if is_symbolic(value) else [], set()
    while stack:
        tensor = stack.pop()
        if tensor.op.type == "ReadVariableOp":
            yield tensor
        elif tensor.name not in seen:
            seen.add(tensor.name)
            stack.extend(tensor.op.inputs)


def is_of_past_state(tensor: Any) -> bool:
    """Whether the step assigns a variable after it is read for this tensor."""
    if not is_symbolic(tensor):
        return False
    reads, seen, stack = {}, set(), [tensor.op]
    while stack:
        operation = stack.pop()
        if operation.type == "ReadVariableOp":
            reads[operation.name] = key_of(operation.inputs[0])
        elif operation.name not in seen:
            seen.add(operation.name)
            stack.extend(one.op for one in operation.inputs)
    read = set()
    for operation in tensor.graph.get_operations():  # in the order of the step
        if operation.name in reads:
            read.add(reads[operation.name])
        elif operation.type in _ASSIGNS and key_of(operation.inputs[0]) in read:
            return True
    return False
