"""What a step adds up between the workers: how many bytes, in which pieces."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.step_context import current_step
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.events import ReductionPlan

GRADIENTS = "gradients"
"""What `all_reduce_packed` is told that it adds up, where these are the gradients of a step."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What travels in one collective.

    Attributes:
        bytes: of one worker; 0 where the shape is not known before the step runs.
        dtype: its name.
        is_sparse: whether it is rows, whose number is another in each step.
    """

    bytes: int
    dtype: str
    is_sparse: bool


def note_pieces(tensors: Sequence[Any]) -> None:
    """Take note of the tensors that travel, each in a collective, in the step around this code."""
    pieces = current_step().reductions
    if pieces is not None:
        pieces += map(_piece, tensors)


def _piece(tensor: Any) -> Piece:
    is_sparse = isinstance(tensor, tf.IndexedSlices)
    entries = None if is_sparse else tensor.shape.num_elements()
    return Piece(
        bytes=(entries or 0) * tensor.dtype.size, dtype=tensor.dtype.name, is_sparse=is_sparse
    )


def record_reduction_plan(pieces: Sequence[Piece], recorded: dict[Any, Any]) -> None:
    """Write the event of a step that was traced, if events are written and it is not known yet.

    Args:
        pieces: those of the step.
        recorded: holds the plan that was recorded last, which a second trace of the step repeats.
    """
    if not pieces:
        return
    dense = [piece for piece in pieces if not piece.is_sparse]
    sizes: Counter[str] = Counter()
    for piece in dense or pieces:
        sizes[piece.dtype] += piece.bytes
    plan = ReductionPlan(
        bytes=sum(piece.bytes for piece in dense),
        buckets=len(dense),
        dtype=sizes.most_common(1)[0][0],
        sparse=len(pieces) - len(dense),
    )
    event_log = worker_event_log(os.environ)
    if event_log is None or recorded.get(ReductionPlan) == plan:
        return
    recorded[ReductionPlan] = plan
    event_log.append(plan)
