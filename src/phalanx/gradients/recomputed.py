"""Parts of a graph that are computed once more, from other inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf


def is_pure(operation: Any) -> bool:
    """Whether an operation computes its outputs of its inputs alone, and calls no function."""
    is_known = bool(operation.inputs) or operation.type == "Const"
    return is_known and not calls_function(operation) and not operation.op_def.is_stateful


def calls_function(operation: Any) -> bool:
    """Whether an operation calls a function, as loops and conditions do."""
    return any(attribute.type in ("func", "list(func)") for attribute in operation.op_def.attr)


def graph_of(operations: Iterable[Any]) -> tf.compat.v1.GraphDef:
    """These operations, on no device and after no other operation than their inputs."""
    graph = tf.compat.v1.GraphDef(node=map(_without_place, operations))
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    return graph


def compute_again(
    graph: tf.compat.v1.GraphDef, inputs: Mapping[str, Any], output: str, *, name: str
) -> Any:
    """What a graph from `graph_of` computes of other inputs; in a graph only.

    Args:
        graph: the operations.
        inputs: tensors by the names of those that they replace.
        output: the name of the tensor to compute.
        name: of the scope for the new operations.
    """
    (value,) = tf.graph_util.import_graph_def(
        graph, input_map=dict(inputs), return_elements=[output], name=name
    )
    return value


def _without_place(operation: Any) -> Any:
    node = tf.compat.v1.NodeDef()
    node.CopyFrom(operation.node_def)
    node.device = ""
    node.attr.pop("_class", None)
    inputs = [name for name in node.input if not name.startswith("^")]
    del node.input[:]
    node.input.extend(inputs)
    return node
