"""What code inside a training step can ask for without being passed it.

Keras calls optimizers, losses and metrics itself, so what they need of the step around them cannot
travel as an argument. All of it is here, and nothing else is ambient in a step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.gradients.comm_timer import Stopwatch
    from phalanx.gradients.gradient_probe import GradientProbe
    from phalanx.gradients.replica_batch import ReplicaBatch


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """The step that is being traced or run.

    Attributes:
        probe: observes its gradients; None in a step that is not sampled.
        stopwatch: times its collectives; None in a step that is not timed.
        replica_batch: the local batch of this thread's replica; None outside of a step.
        applies_total: whether this thread applies a gradient that is already aggregated.
        clipped_variables: the variables whose gradients this thread's optimizer clips.
    """

    probe: GradientProbe | None = None
    stopwatch: Stopwatch | None = None
    replica_batch: ReplicaBatch | None = None
    applies_total: bool = False
    clipped_variables: Sequence[Any] = ()


_shared = StepContext()
_thread = threading.local()


def current_step() -> StepContext:
    """The step around this code; the defaults outside of one."""
    own: dict[str, Any] | None = getattr(_thread, "own", None)
    return replace(_shared, **own) if own else _shared


def current_replica_batch() -> ReplicaBatch | None:
    """The local batch of the replica whose step runs in this thread, or None."""
    return current_step().replica_batch


@contextlib.contextmanager
def step_scope(**fields: Any) -> Iterator[None]:
    """Set fields of the step for this thread, which is one replica's."""
    previous: dict[str, Any] = getattr(_thread, "own", {})
    _thread.own = {**previous, **fields}
    try:
        yield
    finally:
        _thread.own = previous


@contextlib.contextmanager
def all_replicas_scope(
    *, probe: GradientProbe | None = None, stopwatch: Stopwatch | None = None
) -> Iterator[None]:
    """Set the probe or the stopwatch of the step for all threads: replicas run in threads."""
    global _shared
    previous = _shared
    _shared = replace(
        previous, probe=probe or previous.probe, stopwatch=stopwatch or previous.stopwatch
    )
    try:
        yield
    finally:
        _shared = previous
