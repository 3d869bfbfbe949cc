"""Counters of the stateful draws of a step, shared by all functions that call the step."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

Seeds = tuple[int, int]

Advance = Callable[[Any], Any]
"""Advances the counter of a draw (int64) by so much; returns what it was."""

FindCounter = Callable[[Seeds], tuple[Seeds, Advance] | None]
"""Seeds and counter of the draw that is being traced with these seeds; None without a counter."""


class DrawCounters:
    """The counters of a step's stateful draws, one for each draw, shared by all its traces.

    A draw is known by the graph (of the step, or of a branch or loop in it) and its number there.
    Each replica has a counter. TensorFlow numbers the draws of a graph to seed them, and mirrored
    replicas share a graph, so all replicas take the seeds of the one that is traced first.
    """

    def __init__(self) -> None:
        """Counters start at 0, when a draw is first traced."""
        self._resources: dict[tuple[Any, ...], tf.Tensor] = {}
        self._seeds: dict[tuple[Any, ...], Seeds] = {}
        self._restored: dict[tuple[Any, ...], int] = {}

    def read(self) -> list[list[Any]]:
        """The counters of one replica, which are those of all, as JSON knows them."""
        first = min((replica for replica, *_ in self._resources), default=0)
        return [
            [*draw, int(tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int64))]
            for (replica, *draw), resource in self._resources.items()
            if replica == first
        ]

    def restore(self, counters: list[list[Any]]) -> None:
        """Continue from what `read` returned, also for draws that are traced later."""
        self._restored = {tuple(draw): value for *draw, value in counters}
        for (_, *draw), resource in self._resources.items():
            value = tf.constant(self._restored.get(tuple(draw), 0), tf.int64)
            tf.raw_ops.AssignVariableOp(resource=resource, value=value)

    def of_trace(self, replica: int) -> FindCounter:
        """Finds the counters of the draws of one trace, in the order in which they are traced."""
        root = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        draws_in: dict[int, int] = {}
        graphs: dict[str, list[Any]] = {}

        def next_counter(seeds: Seeds) -> tuple[Seeds, Advance] | None:
            if tf.executing_eagerly():
                return None
            graph = tf.compat.v1.get_default_graph()
            if not _is_within(root, graph):
                return None  # a function of the script's own is traced once, for all its callers
            name = "" if graph is root else re.sub(r"\d+", "", getattr(graph, "name", ""))
            known = graphs.setdefault(name, [])
            if id(graph) not in draws_in:
                known.append(graph)
            number = draws_in[id(graph)] = draws_in.get(id(graph), -1) + 1
            draw = name, known.index(graph), number
            return self._seeds.setdefault(draw, seeds), partial(self._advance, (replica, *draw))

        return next_counter

    def _advance(self, key: tuple[Any, ...], amount: Any) -> Any:
        if key not in self._resources:
            with tf.init_scope(), tf.device("CPU:0"):
                # Not tf.Variable: under a strategy that would be a variable of the replicas.
                self._resources[key] = resource = tf.raw_ops.VarHandleOp(
                    dtype=tf.int64, shape=[], shared_name=f"phalanx-draws-{uuid.uuid4()}"
                )
                tf.raw_ops.AssignVariableOp(
                    resource=resource, value=tf.constant(self._restored.get(key[1:], 0), tf.int64)
                )
        resource = self._resources[key]
        with tf.device("CPU:0"):
            before = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int64)
            tf.raw_ops.AssignAddVariableOp(resource=resource, value=amount)
        return before


def _is_within(root: Any, graph: Any) -> bool:
    """Whether `graph` is `root`, or that of a branch or a loop in it."""
    while graph is not root and getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph is root
