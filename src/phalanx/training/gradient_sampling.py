"""An observer's looks: at which steps, through which lens, and what each cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from phalanx.distributed.topology import ReplicaTopology
from phalanx.gradients.gradient_probe import ProbeConfig
from phalanx.training.overhead_budget import OverheadBudget


class GradientListener(Protocol):
    """A callback that is shown the gradients of some steps."""

    observes_gradients: bool
    every_n_steps: int
    max_overhead: float | None

    def lens(self, look: int) -> ProbeConfig:
        """What to look at, the `look`-th time (from 0)."""

    def on_gradients(self, step: int, seen: list[dict[str, Any]], place: ReplicaTopology) -> None:
        """What this process's replicas saw at `step`, as NumPy values, by local replica."""


class TraceCache:
    """A function for each lens, made when it is first looked through."""

    def __init__(self, make: Callable[[ProbeConfig], Any]) -> None:
        """Make functions by `make`."""
        self._make = make
        self._made: dict[ProbeConfig, Any] = {}

    def __contains__(self, lens: ProbeConfig) -> bool:
        return lens in self._made

    def of(self, lens: ProbeConfig) -> Any:
        """The function that looks through `lens`."""
        if lens not in self._made:
            self._made[lens] = self._make(lens)
        return self._made[lens]


class GradientSampler:
    """Shows the observer the steps that are due, and keeps their cost in bounds."""

    def __init__(self, observer: GradientListener) -> None:
        """Nothing was looked at yet."""
        self._observer = observer
        self._count = 0
        self.sampling = OverheadBudget(
            every=observer.every_n_steps, max_overhead=observer.max_overhead, clock=time.monotonic
        )

    def look(
        self,
        step: int,
        traces: TraceCache,
        run: Callable[[Any, tf.Tensor, tf.Tensor], tuple[Any, Any]],
        place: Callable[[], ReplicaTopology],
    ) -> Any:
        """Run one step and show its gradients.

        Args:
            step: its number, from 1.
            traces: the functions to run.
            run: calls one of them, with the step (int64) and the chief's note (float32);
                gives the step's result and what the replicas saw.
            place: this process's replicas, known once the step has run.

        Returns:
            The step's result.
        """
        begun = time.monotonic()
        lens = self._observer.lens(self._count)
        traced = lens not in traces
        note = tf.constant(self.sampling.proposal, tf.float32)
        result, seen = run(traces.of(lens), tf.constant(step, tf.int64), note)
        shown = tf.nest.map_structure(lambda t: t.numpy(), seen)
        self._observer.on_gradients(step, shown, place())
        self._count += 1
        interval = float(shown[0]["whole"]["note"]) if shown[0] else self.sampling.proposal
        self.sampling.looked(step, begun, interval, traced=traced)
        return result
