"""Keep track of steps whose total gradient was not finite, and of where that came from.

What happened is kept in a few variables that the step assigns, so nobody waits for a
number at every step; `fit` looks now and then, the same steps on every worker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.gradients.reduce import Gradient
from phalanx.gradients.rules import OnNonfinite, nonfinite_flags, without_nonfinite

_NEVER = -1


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """The first step with a gradient that was not finite.

    Attributes:
        step: the optimizer's iteration, from 0.
        variable: the position of the first such variable among those applied.
        replicas: the replicas whose own gradients were not finite; empty where the sum
            of finite ones overflowed.
    """

    step: int
    variable: int
    replicas: tuple[int, ...]


class Health:
    """The record of one optimizer, under one strategy."""

    def __init__(self, strategy: tf.distribute.Strategy, policy: OnNonfinite) -> None:
        """Make the variables; call it outside of any step."""
        self.strategy = strategy
        with strategy.scope():
            self._step = _counter(_NEVER, "first_nonfinite_step")
            self._variable = _counter(_NEVER, "first_nonfinite_variable")
            self._count = _counter(0, "nonfinite_steps")
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

    def clear(self) -> None:
        """Forget every step so far."""
        self._step.assign(_NEVER)
        self._variable.assign(_NEVER)
        self._count.assign(0)
        self._replicas.assign(tf.zeros_like(self._replicas))

    def trouble(self) -> Trouble | None:
        """The first such step, or None."""
        step = int(self._step.numpy())
        if step == _NEVER:
            return None
        flags = self._replicas.numpy()
        return Trouble(
            step=step,
            variable=int(self._variable.numpy()),
            replicas=tuple(int(i) for i in flags.nonzero()[0]),
        )

    def apply(
        self,
        total: Sequence[Gradient],
        finite: tf.Tensor,
        replica_flags: tf.Tensor,
        step: Any,
        apply: Callable[[Sequence[Gradient]], None],
    ) -> None:
        """Apply `total` as the policy has it, and note a step that is not finite."""

        def note() -> None:
            first = self._step < 0
            flags = nonfinite_flags(total)
            self._variable.assign(tf.where(first, tf.argmax(flags), self._variable))
            self._replicas.assign(tf.where(first, replica_flags, self._replicas))
            self._step.assign(tf.where(first, tf.cast(step, tf.int64), self._step))
            self._count.assign_add(1)

        if self.policy == "skip":
            tf.cond(finite, lambda: _done(apply, total), lambda: _done(note))
            return
        tf.cond(finite, lambda: _done(lambda: None), lambda: _done(note))
        apply(without_nonfinite(total) if self.policy == "zero" else total)


def _done(action: Callable[..., None], *arguments: Any) -> tf.Tensor:
    """Do it, and return what both branches of a cond can return."""
    action(*arguments)
    return tf.constant(True)


def _counter(start: int, name: str) -> Any:
    return tf.Variable(start, dtype=tf.int64, trainable=False, name=name)


_healths: weakref.WeakKeyDictionary[Any, Health] = weakref.WeakKeyDictionary()


def health_of(optimizer: Any) -> Health | None:
    """The record of `optimizer`, if somebody watches it."""
    return _healths.get(optimizer)


def watch(optimizer: Any, strategy: tf.distribute.Strategy, policy: OnNonfinite) -> Health:
    """Clear the record of `optimizer`, or start one if its strategy or policy is another.

    A traced step keeps the record it was traced with.
    """
    health = _healths.get(optimizer)
    if health is None or health.strategy is not strategy or health.policy != policy:
        health = _healths[optimizer] = Health(strategy, policy)
    health.clear()
    return health
