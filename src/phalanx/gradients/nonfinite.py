"""Keep track of steps whose total gradient was not finite, and of where that came from.

What happened is kept in a few variables that the step assigns, so no worker waits for a
number at every step; `fit` looks now and then, the same steps on every worker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import tensorflow as tf

from phalanx.gradients.all_reduce import Gradient
from phalanx.gradients.checked_all_reduce import (
    ReducedGradients,
    cold_branch,
    nonfinite_flags,
    without_nonfinite,
)
from phalanx.gradients.clipper_chain import OnNonfinite
from phalanx.gradients.replica_batch import CaptureFn

_NEVER = -1

HealthPolicy = OnNonfinite | Literal["watch"]
"""What is done with a step that is not finite; "watch" leaves it to a LossScaleOptimizer, and
notes a loss that is not finite."""


@dataclass(frozen=True, kw_only=True)
class NonFiniteStep:
    """The first step with a gradient that was not finite.

    Attributes:
        step: the optimizer's iteration, from 0.
        variable: the position of the first such variable among those applied.
        replicas: the replicas, those of this process, whose own gradients were not finite; of all
            processes none where the sum of finite ones overflowed.
    """

    step: int
    variable: int
    replicas: tuple[int, ...]


class NonFiniteGuard:
    """The record of one optimizer, under one strategy."""

    def __init__(self, strategy: tf.distribute.Strategy, policy: HealthPolicy) -> None:
        """Make the variables; call it outside of any step."""
        self.strategy = strategy
        with strategy.scope():
            self._step = _counter(_NEVER, "first_nonfinite_step")
            self._variable = _counter(_NEVER, "first_nonfinite_variable")
            self._count = _counter(0, "nonfinite_count")
            self._unseen = tf.Variable(False, trainable=False, name="unseen_nonfinite_step")
            self._replicas = tf.Variable(
                tf.zeros([strategy.num_replicas_in_sync]),
                trainable=False,
                name="nonfinite_replicas",
            )
        self.policy = policy
        self.paths: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Steps so far whose total gradient was not finite."""
        return int(self._count.numpy())

    def start_from(self, count: int) -> None:
        """Have `count` such steps behind, of an earlier process."""
        self._count.assign(count)

    def clear(self) -> None:
        """Forget every step so far."""
        self._step.assign(_NEVER)
        self._variable.assign(_NEVER)
        self._count.assign(0)
        self._unseen.assign(False)
        self._replicas.assign(tf.zeros_like(self._replicas))

    def unseen(self) -> Any:
        """In a graph, after a step: whether it was the first such step."""
        return _copies(self._unseen)[0].read_value()

    def see(self) -> tuple[tf.Tensor, tf.Tensor]:
        """In a graph: have `unseen` give False from now on; the step and the variable."""
        for copy in _copies(self._unseen):
            copy.assign(False)
        noted = (self._step, self._variable)
        step, variable = (_copies(v)[0].read_value() for v in noted)
        return step, variable

    def any_seen(self) -> tf.Tensor:
        """In a graph: whether there was such a step, scalar bool."""
        return _copies(self._step)[0].read_value() > _NEVER

    def trouble(self) -> NonFiniteStep | None:
        """The first such step, or None."""
        step = int(self._step.numpy())
        if step == _NEVER:
            return None
        flags = sum(copy.numpy() for copy in _copies(self._replicas))
        return NonFiniteStep(
            step=step,
            variable=int(self._variable.numpy()),
            replicas=tuple(int(i) for i in flags.nonzero()[0]),
        )

    def apply(
        self,
        checked: ReducedGradients,
        apply: Callable[[Sequence[Gradient]], None],
        *,
        step: Any,
        replica: int,
        keep: CaptureFn | None = None,
    ) -> None:
        """Apply the total as the policy has it, and note a step that is not finite.

        Args:
            checked: the total gradients.
            apply: applies gradients.
            step: the optimizer's iteration.
            replica: this replica's number.
            keep: called at the first such step, before anything is applied.
        """
        total, finite = checked.total, checked.finite

        def note() -> tf.Tensor:
            first = self._step < 0
            variable = tf.argmax(nonfinite_flags(total))
            is_bad, can_be = checked.own()
            if keep is not None:
                kept = partial(keep, tf.cast(step, tf.int64), variable, is_bad, can_be)
                tf.cond(first, lambda: _done(kept), lambda: tf.constant(True))
            # On each replica of itself: the copies of this variable differ.
            flags = tf.one_hot(replica, self.strategy.num_replicas_in_sync) * tf.cast(
                is_bad, tf.float32
            )
            self._variable.assign(tf.where(first, variable, self._variable))
            self._replicas.assign(tf.where(first, flags, self._replicas))
            self._unseen.assign(tf.logical_or(first, self._unseen))
            self._step.assign(tf.where(first, tf.cast(step, tf.int64), self._step))
            self._count.assign_add(1)
            return tf.constant(True)

        if self.policy == "raise":
            # From the first bad step on nothing is applied: the weights stay what they were.
            going_on = tf.logical_and(finite, self._step < 0)
            tf.cond(going_on, lambda: _done(apply, total), cold_branch(note))
            return
        if self.policy == "skip":
            tf.cond(finite, lambda: _done(apply, total), cold_branch(note))
            return
        noted = tf.cond(finite, lambda: _done(lambda: None), cold_branch(note))
        with tf.control_dependencies([noted]):
            apply(without_nonfinite(total) if self.policy == "zero" else total)


def _done(action: Callable[..., Any], *arguments: Any) -> tf.Tensor:
    """Do it, and return what both branches of a cond can return."""
    action(*arguments)
    return tf.constant(True)


def _copies(variable: Any) -> Sequence[Any]:
    return tuple(getattr(variable, "values", (variable,)))


def _counter(start: int, name: str) -> Any:
    return tf.Variable(start, dtype=tf.int64, trainable=False, name=name)


_guards: weakref.WeakKeyDictionary[Any, NonFiniteGuard] = weakref.WeakKeyDictionary()


def guard_of(optimizer: Any) -> NonFiniteGuard | None:
    """The record of `optimizer`, if somebody watches it."""
    return _guards.get(optimizer)


def install_guard(
    optimizer: Any, strategy: tf.distribute.Strategy, policy: HealthPolicy
) -> NonFiniteGuard:
    """Clear the record of `optimizer`, or start one if its strategy or policy is another.

    A traced step keeps the record it was traced with.
    """
    guard = _guards.get(optimizer)
    if guard is None or guard.strategy is not strategy or guard.policy != policy:
        guard = _guards[optimizer] = NonFiniteGuard(strategy, policy)
    guard.clear()
    return guard
