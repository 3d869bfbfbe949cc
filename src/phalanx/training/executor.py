"""Run training steps: plain ones, and at times one that somebody looks at."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from phalanx.data.place import ReplicaPlace
from phalanx.errors import NonFiniteError
from phalanx.gradients.health import Health, Trouble, watch
from phalanx.gradients.rules import OnNonfinite
from phalanx.seam.rules import innermost, rules_of
from phalanx.training.observed import ObservedSteps, observer_among
from phalanx.training.step import Outputs, StepFunction

_log = logging.getLogger(__name__)
_CHECK_EVERY = 32


class Executor:
    """Runs the steps of one `fit`, and minds the gradients' health."""

    def __init__(self, model: Any, function: StepFunction, callbacks: Iterable[Any]) -> None:
        """Get ready; nothing is traced yet."""
        self._model = model
        self._function = function
        self._health = _health(model, function, list(callbacks))
        observer = observer_among(callbacks)
        self._observed = ObservedSteps(model, function, observer) if observer else None
        self._trained = 0
        self._checked = 0

    def start(self, trained: int) -> None:
        """Count from `trained` steps on."""
        self._trained = trained

    def steps_until_look(self) -> int | None:
        """How many steps the next execution may have: a look ends it."""
        if self._observed is None:
            return None
        return self._observed.sampling.steps_until(self._trained)

    def run(self, iterator: Any, steps: int) -> tuple[int, Outputs]:
        """Run up to `steps` steps; see `StepFunction.on_iterator`.

        Raises:
            StopIteration: there was no batch left at all.
            NonFiniteError: a total gradient was not finite, and that ends the training.
        """
        done, outputs = self._run(iterator, steps)
        self._trained += done
        if self._trained - self._checked >= _CHECK_EVERY:
            self.check()
        return done, outputs

    def check(self) -> None:
        """Raise if a gradient was not finite; all workers do so at the same step."""
        self._checked = self._trained
        if self._health is None or self._health.policy != "raise":
            return
        if (trouble := self._health.trouble()) is not None:
            place = self._function.plan.place
            raise NonFiniteError(_explain(self._health.paths, trouble, place))

    def logs(self) -> dict[str, float]:
        """What an epoch's logs say of gradients that were left out, if the user asked."""
        if self._health is None or self._health.policy == "raise":
            return {}
        return {"nonfinite_steps": float(self._health.count)}

    def _run(self, iterator: Any, steps: int) -> tuple[int, Outputs]:
        observed = self._observed
        if observed is None or not observed.sampling.is_due(self._trained + steps):
            return self._function.on_iterator(iterator, steps)
        if steps > 1:
            done, outputs = self._function.on_iterator(iterator, steps - 1)
            if done < steps - 1:
                return done, outputs
        try:
            return steps, observed.run(iterator, self._trained + steps)
        except StopIteration:
            if steps == 1:
                raise
            return steps - 1, outputs


def _health(model: Any, function: StepFunction, callbacks: list[Any]) -> Health | None:
    """The record of the model's optimizer, where it has a say in what happens then."""
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, keras.optimizers.Optimizer) or model.jit_compile:
        return None
    policy = _policy(optimizer, callbacks)
    inner = innermost(optimizer)
    if policy == "ignore" or inner is not optimizer:
        return None  # a LossScaleOptimizer leaves such steps out by itself
    health = watch(inner, function.plan.strategy, policy)
    if function.companions.get(Health) is not health:
        function.companions[Health] = health
        function.trace_anew()  # what was traced before does not tell this one
    return health


def _policy(optimizer: Any, callbacks: list[Any]) -> OnNonfinite:
    rules = rules_of(optimizer)
    if rules is not None and rules.on_nonfinite is not None:
        return rules.on_nonfinite
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        return "ignore"  # the user has chosen how such a run ends
    return "raise"


def _explain(paths: Sequence[str], trouble: Trouble, place: ReplicaPlace) -> str:
    name = paths[trouble.variable]
    workers = sorted({replica // place.local for replica in trouble.replicas})
    if workers:
        source = f"it came from worker {', '.join(map(str, workers))}"
        if place.local > 1:
            source += f" (replica {', '.join(map(str, trouble.replicas))})"
    else:
        source = "each worker's own was finite, their sum was not"
    return (
        f"The gradient of {name} had NaN or infinite entries at step {trouble.step + 1}; {source}. "
        "Lower the learning rate, clip with global_clipnorm, or look at that worker's data; "
        'phalanx.clip.use(optimizer, on_nonfinite="skip") goes on without such steps.'
    )
