"""An listener's looks: at which steps, through which probe_config, and what each cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.callbacks.fit_protocols import GradientListener
from phalanx.distributed.topology import ReplicaTopology
from phalanx.gradients.gradient_probe import ProbeConfig
from phalanx.training.overhead_budget import OverheadBudget


class TraceCache:
    """A function for each probe_config, made when it is first looked through."""

    def __init__(self, make: Callable[[ProbeConfig], Any]) -> None:
        """Make functions by `make`."""
        self._make = make
        self._made: dict[ProbeConfig, Any] = {}

    def __contains__(self, probe_config: ProbeConfig) -> bool:
        return probe_config in self._made

    def of(self, probe_config: ProbeConfig) -> Any:
        """The function that looks through `probe_config`."""
        if probe_config not in self._made:
            self._made[probe_config] = self._make(probe_config)
        return self._made[probe_config]


class GradientSampler:
    """Shows the listener the steps that are due, and keeps their cost in bounds."""

    def __init__(self, listener: GradientListener) -> None:
        """Nothing was looked at yet."""
        self._listener = listener
        self._count = 0
        self.sampling = OverheadBudget(
            every=listener.every_n_steps, max_overhead=listener.max_overhead, clock=time.monotonic
        )

    def sample(
        self,
        step: int,
        traces: TraceCache,
        run: Callable[[Any, tf.Tensor, tf.Tensor], tuple[Any, Any]],
        topology: Callable[[], ReplicaTopology],
    ) -> Any:
        """Run one step and show its gradients.

        Args:
            step: its number, from 1.
            traces: the functions to run.
            run: calls one of them, with the step (int64) and the chief's note (float32);
                gives the step's result and what the replicas saw.
            topology: this process's replicas, known once the step has run.

        Returns:
            The step's result.
        """
        started = time.monotonic()
        probe_config = self._listener.probe_config(self._count)
        traced = probe_config not in traces
        note = tf.constant(self.sampling.proposal, tf.float32)
        result, seen = run(traces.of(probe_config), tf.constant(step, tf.int64), note)
        shown = tf.nest.map_structure(lambda t: t.numpy(), seen)
        self._listener.on_gradients(step, shown, topology())
        self._count += 1
        interval = float(shown[0]["global"]["note"]) if shown[0] else self.sampling.proposal
        self.sampling.record(step, started, interval, traced=traced)
        return result
