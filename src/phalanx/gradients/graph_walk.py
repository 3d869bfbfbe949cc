"""The walk back through a graph from a tensor to what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from phalanx.gradients.axis_sizes import key_of

Found = TypeVar("Found")


def is_symbolic(value: Any) -> bool:
    """Whether a value is a tensor of a graph, which knows the operation that makes it."""
    return isinstance(value, tf.Tensor) and tf.is_symbolic_tensor(value)


def graph_around_branches() -> Any:
    """The graph that is traced; for a branch or the body of a loop, the one around it."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph


def is_in_branch() -> bool:
    """Whether what is traced is a branch of a condition, or the body of a loop."""
    return tf.compat.v1.get_default_graph() is not graph_around_branches()


def inputs_of(tensor: Any) -> Sequence[Any] | None:
    """What a tensor is computed from; None where that is unknown, as for a function's argument.

    A branch takes tensors from the graph around it.
    """
    if tensor.op.type != "Placeholder" or tensor.dtype == tf.resource:
        return tuple(tensor.op.inputs)
    outer = _captured(tensor)
    if outer is None:
        return None
    return (outer,) if is_symbolic(outer) else ()


def _captured(placeholder: Any) -> Any:
    """What a function or a branch takes from around it by a placeholder; None for an argument."""
    captures, name = getattr(placeholder.graph, "captures", ()), key_of(placeholder)
    return next((outer for outer, inner in captures if key_of(inner) == name), None)


def _inputs_of_operation(tensor: Any) -> Sequence[Any]:
    return tuple(tensor.op.inputs)


def judged(
    tensor: Any,
    known: dict[tuple[int, str], Found],
    judge: Callable[[Any, list[Found]], Found],
    *,
    leaves: Collection[str] = (),
    inputs_of: Callable[[Any], Sequence[Any] | None] = _inputs_of_operation,
) -> Found:
    """What `judge` says of a symbolic tensor, by what it says of the inputs of each operation.

    Args:
        tensor: the tensor.
        known: by `key_of`, answers that are known already; all that are found are added.
        judge: is given a tensor, and the answers for the inputs of its operation.
        leaves: the types of operations whose inputs are not looked at.
        inputs_of: gives what a tensor is computed from; None where that is unknown.

    Returns:
        The answer for `tensor`.
    """
    stack = [tensor]
    while stack:
        one = stack[-1]
        inputs = () if one.op.type in leaves else inputs_of(one) or ()
        if key_of(one) in known:
            stack.pop()
        elif missing := [each for each in inputs if key_of(each) not in known]:
            stack += missing
        else:
            known[key_of(one)] = judge(one, [known[key_of(each)] for each in inputs])
    return known[key_of(tensor)]
