"""What a step computes of single rows of the batch belongs to the replica that has them.

The gradients that replicas add up are those of a loss over the batch. A Jacobian of one loss for
each row has a gradient for each row, of which private training (arXiv:1607.00133) clips every one.
`tf.vectorized_map` and `tf.map_fn` over rows call a function for each row. What it computes is of
that row alone, so it neither weighs nor exchanges anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from phalanx.gradients.replica_batch import FindBatch
from phalanx.gradients.step_context import step_scope
from phalanx.keras_compat.global_values import has_all_rows


def row_by_row(find: FindBatch) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that gradients of single rows are not taken for those of a loss.

    Args:
        find: gives the share of the replica.
    """
    tape = tf.GradientTape
    return {
        (tape, "jacobian"): _of_rows(tape.jacobian, find),
        (tape, "batch_jacobian"): _of_rows(tape.batch_jacobian, find),
        (tf, "map_fn"): _for_each_row(tf.map_fn, find),
        (tf, "vectorized_map"): _for_each_row(tf.vectorized_map, find),
    }


def _of_rows(original: Callable[..., Any], find: FindBatch) -> Callable[..., Any]:
    @functools.wraps(original)
    def jacobian(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        replica_batch = find()
        has_rows = replica_batch is not None and has_all_rows(replica_batch, target)
        with replica_batch.by_row() if replica_batch and has_rows else nullcontext():
            return original(self, target, *args, **kwargs)

    return jacobian


def _for_each_row(original: Callable[..., Any], find: FindBatch) -> Callable[..., Any]:
    @functools.wraps(original)
    def mapped(fn: Any, elems: Any, *args: Any, **kwargs: Any) -> Any:
        replica_batch = find()
        has_rows = replica_batch is not None and any(
            has_all_rows(replica_batch, one) for one in tf.nest.flatten(elems)
        )
        with step_scope(replica_batch=None) if has_rows else nullcontext():
            return original(fn, elems, *args, **kwargs)

    return mapped
