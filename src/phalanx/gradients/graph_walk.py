"""The walk back through a graph from a tensor to what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection
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


def judged(
    tensor: Any,
    known: dict[tuple[int, str], Found],
    judge: Callable[[Any, list[Found]], Found],
    *,
    leaves: Collection[str] = (),
) -> Found:
    """What `judge` says of a symbolic tensor, by what it says of the inputs of each operation.

    Args:
        tensor: the tensor.
        known: by `key_of`, answers that are known already; all that are found are added.
        judge: is given a tensor, and the answers for the inputs of its operation.
        leaves: the types of operations whose inputs are not looked at.

    Returns:
        The answer for `tensor`.
    """
    stack = [tensor]
    while stack:
        one = stack[-1]
        inputs = [] if one.op.type in leaves else list(one.op.inputs)
        if key_of(one) in known:
            stack.pop()
        elif missing := [each for each in inputs if key_of(each) not in known]:
            stack += missing
        else:
            known[key_of(one)] = judge(one, [known[key_of(each)] for each in inputs])
    return known[key_of(tensor)]
