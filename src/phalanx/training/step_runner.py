"""Run training steps: plain ones, and at times one that somebody looks at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.callbacks.fit_protocols import GradientListener, gradient_listener
from phalanx.distributed.host_collectives import all_gather_rows, on_any_worker
from phalanx.distributed.topology import ReplicaTopology, calls_python
from phalanx.errors import NonFiniteError
from phalanx.gradients.clipper_chain import OnNonfinite
from phalanx.gradients.gradient_probe import GradientProbe, ProbeConfig
from phalanx.gradients.nonfinite import NonFiniteGuard, NonFiniteStep, install_guard
from phalanx.gradients.step_context import all_replicas_scope
from phalanx.keras_compat.optimizer_clippers import clippers_of, innermost, optimizers_in
from phalanx.monitoring.flight_recorder import flight
from phalanx.training.gradient_sampling import GradientSampler, TraceCache
from phalanx.training.local_steps import LocalSteps
from phalanx.training.nonfinite_capture import NonFiniteCapture, capture_dir, capture_hint
from phalanx.training.run_switches import runs_eagerly
from phalanx.training.step_function import Outputs, StepFunction

_log = logging.getLogger(__name__)
_CHECK_EVERY = 32

RunsOne = Callable[[Any], Outputs]
"""Runs one step on an iterator's next batch; raises StopIteration where there is none."""


class StepRunner:
    """Runs the steps of one `fit`, and minds the gradients' health."""

    def __init__(
        self,
        model: Any,
        function: StepFunction,
        callbacks: Iterable[Any],
        local: LocalSteps | None = None,
    ) -> None:
        """Get ready; nothing is traced yet."""
        self._model = model
        self._local = local
        self._function = function
        self._guard = _guard(model, function, list(callbacks))
        self.kept = _nonfinite_capture(model, function, self._guard)
        listener = gradient_listener(callbacks)
        self._sampled = SampledSteps(model, function, listener) if listener else None
        self._trained = 0
        self._checked = 0
        self._has_reported = False

    @property
    def trained(self) -> int:
        """Steps trained so far, those of earlier calls of `fit` included."""
        return self._trained

    def start(self, trained: int) -> None:
        """Count from `trained` steps on."""
        self._trained = trained

    def steps_until_sample(self) -> int | None:
        """How many steps the next execution may have: a look ends it."""
        if self._sampled is None:
            return None
        return self._sampled.sampling.steps_until(self._trained)

    def run(self, iterator: Any, steps: int, timed: RunsOne | None = None) -> tuple[int, Outputs]:
        """Run up to `steps` steps; see `StepFunction.on_iterator`.

        Args:
            iterator: the data.
            steps: how many.
            timed: runs the last of them, if its gradients are not sampled.

        Raises:
            StopIteration: there was no batch left at all.
            NonFiniteError: a total gradient was not finite, and that ends the training.
        """
        if self.kept is not None:
            self.kept.running = (self._trained, steps)
        done, outputs = self._run(iterator, steps, self._sampled_step(steps) or timed)
        self._trained += done
        if self._trained - self._checked >= _CHECK_EVERY:
            self.check()
        return done, outputs

    def check(self) -> None:
        """Raise if a gradient was not finite; all workers do so at the same step."""
        self._checked = self._trained
        if (
            self._has_reported
            or self._guard is None
            or self._guard.policy not in ("raise", "watch")
        ):
            return
        topology, strategy = self._function.plan.topology, self._function.plan.strategy
        trouble = self._guard.trouble()
        if self._local is not None and self._function.is_local:
            if not self._local.found_nonfinite:
                return  # what one worker knows, the others learn at the next sync
            trouble = _first_of_all_workers(trouble, strategy, topology)
        elif trouble is not None:
            trouble = _of_all_workers(trouble, strategy, topology)
        if trouble is None:
            return
        hint = capture_hint(trouble.step + 1)
        if self._guard.policy == "raise":
            raise NonFiniteError(_explain(self._guard.paths, trouble, topology) + hint)
        if topology.is_chief:
            _log.warning(
                "The loss was not finite at step %d; %s. A LossScaleOptimizer leaves such steps "
                "out, but fixes no loss.%s",
                trouble.step + 1,
                _workers(trouble, topology),
                hint,
            )
        self._has_reported = True

    def logs(self) -> dict[str, float]:
        """What an epoch's logs say of gradients that were left out, if the user asked."""
        if self._guard is None or self._guard.policy in ("raise", "watch"):
            return {}
        return {"nonfinite_count": float(self._guard.count)}

    def _sampled_step(self, steps: int) -> RunsOne | None:
        """What runs the last of the next `steps` steps, if that one is looked at."""
        observed, last = self._sampled, self._trained + steps
        if observed is None or not observed.sampling.is_due(last):
            return None
        return lambda iterator: observed.run(iterator, last)

    def _run(self, iterator: Any, steps: int, last: RunsOne | None) -> tuple[int, Outputs]:
        if last is None:
            return self._function.on_iterator(iterator, steps)
        if steps > 1:
            done, outputs = self._function.on_iterator(iterator, steps - 1)
            if done < steps - 1:
                return done, outputs
        try:
            return steps, last(iterator)
        except StopIteration:
            if steps == 1:
                raise
            return steps - 1, outputs


def _guard(model: Any, function: StepFunction, callbacks: list[Any]) -> NonFiniteGuard | None:
    """The record of the model's optimizer, where it has a say in what happens then."""
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return None
    policy = _policy(optimizer, callbacks)
    inner = innermost(optimizer)
    if policy == "ignore":
        return None
    # A LossScaleOptimizer leaves such steps out on its own.
    guard = install_guard(
        optimizer, function.plan.strategy, policy if inner is optimizer else "watch"
    )
    if function.extensions.get(NonFiniteGuard) is not guard:
        function.extensions[NonFiniteGuard] = guard
        function.retrace()  # what was traced before does not report to this one
    return guard


def _nonfinite_capture(
    model: Any, function: StepFunction, guard: NonFiniteGuard | None
) -> NonFiniteCapture | None:
    """What keeps the first step that goes wrong, where there is a place to keep it."""
    to = capture_dir()
    plan = function.plan
    if guard is None or to.folder is None or not plan.counted or not calls_python(plan.strategy):
        return None
    kept: NonFiniteCapture | None = function.extensions.get(NonFiniteCapture)
    if kept is None or kept.guard is not guard:
        kept = function.extensions[NonFiniteCapture] = NonFiniteCapture(
            model, plan.topology, guard, to
        )
        function.retrace()
    return kept


def _policy(optimizer: Any, callbacks: list[Any]) -> OnNonfinite:
    for one in optimizers_in(optimizer):
        rules = clippers_of(one)
        if rules is not None and rules.on_nonfinite is not None:
            return rules.on_nonfinite
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        return "ignore"  # the user has chosen how such a run ends
    return "raise"


def _of_all_workers(
    trouble: NonFiniteStep, strategy: tf.distribute.Strategy, topology: ReplicaTopology
) -> NonFiniteStep:
    """`trouble` with the replicas of all workers; a collective."""
    own = (replica in trouble.replicas for replica in range(topology.total))
    found = on_any_worker(strategy, topology, *own)
    return replace(trouble, replicas=tuple(i for i, is_bad in enumerate(found) if is_bad))


def _first_of_all_workers(
    trouble: NonFiniteStep | None, strategy: tf.distribute.Strategy, topology: ReplicaTopology
) -> NonFiniteStep | None:
    """The first of what workers have met in steps of their own; a collective."""
    own = (-1, 0) if trouble is None else (trouble.step, trouble.variable)
    rows = all_gather_rows(strategy, topology, np.array(own, np.int64)).tolist()
    met = {rank: (step, variable) for rank, (step, variable) in enumerate(rows) if step >= 0}
    if not met:
        return None
    step, variable = min(met.values())
    return NonFiniteStep(
        step=step, variable=variable, replicas=tuple(r for r, (s, _) in met.items() if s == step)
    )


def _workers(trouble: NonFiniteStep, topology: ReplicaTopology) -> str:
    workers = sorted({replica // topology.local for replica in trouble.replicas})
    if topology.has_peers and len(workers) == topology.total // topology.local:
        return "every worker had them (BatchNormalization passes those of one worker on to all)"
    origin = f"it came from worker {', '.join(map(str, workers))}"
    if topology.local > 1:
        origin += f" (replica {', '.join(map(str, trouble.replicas))})"
    return origin


def _explain(paths: Sequence[str], trouble: NonFiniteStep, topology: ReplicaTopology) -> str:
    name = paths[trouble.variable]
    if trouble.replicas:
        source = _workers(trouble, topology)
    else:
        source = "each worker's own was finite, their sum was not"
    return (
        f"The gradient of {name} had NaN or infinite entries at step {trouble.step + 1}; {source}. "
        "Lower the learning rate, clip with global_clipnorm, or look at the data; "
        'phalanx.clip.attach(optimizer, on_nonfinite="skip") continues without such steps.'
    )


class SampledSteps:
    """Runs the observed steps of one `fit`, and shows them to its listener."""

    def __init__(self, model: Any, function: StepFunction, listener: GradientListener) -> None:
        """Get ready next to `function`; what is needed is traced when a step first needs it."""
        self._topology = function.plan.topology
        self._model = model
        self._function = function
        self._sampler = GradientSampler(listener)
        self.sampling = self._sampler.sampling

    def run(self, iterator: Any, step: int) -> Outputs:
        """Run one step, numbered from 1, and show its gradients.

        Raises:
            StopIteration: there was no batch left.
        """

        def on_next(function: Any, number: tf.Tensor, note: tf.Tensor) -> tuple[Any, Any]:
            try:
                outputs, seen = function(iterator, number, note)
            except (StopIteration, tf.errors.OutOfRangeError):
                raise StopIteration from None
            return outputs, seen

        self._function.look_at_step(iterator.element_spec)
        with flight.execution("train"):
            outputs: Outputs = self._sampler.sample(
                step, _sampled_traces(self._model, self._function), on_next, lambda: self._topology
            )
        return outputs


class SampledTraces(TraceCache):
    """The second traces of a step; kept from one `fit` to the next.

    Attributes:
        version: that of the step function next to these.
    """

    def __init__(self, model: Any, function: StepFunction) -> None:
        """Get ready next to `function`."""
        super().__init__(self._trace)
        self.version = function.version
        self._function = function
        self._step = StepFunction(model, "train", function.plan)
        self._step.assigned = function.assigned  # what its steps assign and return, these do
        self._step.invariant = function.invariant
        self._step.results = function.results
        self._step.extensions = function.extensions  # what keeps those that go wrong
        self._step.is_local, self._step.samples = function.is_local, function.samples
        self._topology = function.plan.topology
        self._eager = runs_eagerly(model)

    def _trace(self, probe_config: ProbeConfig) -> Any:
        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def observed(iterator: Any, step: tf.Tensor, note: tf.Tensor) -> Any:
            element = next(iterator)
            observation = GradientProbe(probe_config, step=step, note=note)
            with all_replicas_scope(probe=observation):
                outputs = self._step.on_replicas(element)
                self._function.capture_after(element)
            first = self._topology.first
            seen = [observation.seen.get(first + i, {}) for i in range(self._topology.local)]
            return outputs, seen

        return observed if self._eager else tf.function(observed)


def _sampled_traces(model: Any, function: StepFunction) -> SampledTraces:
    kept = function.extensions.get(SampledTraces)
    if kept is None or kept.version != function.version:
        kept = function.extensions[SampledTraces] = SampledTraces(model, function)
    found: SampledTraces = kept
    return found
