"""Learning rates for many workers: `phalanx.schedules`, from Goyal et al. 2017.

    rate = phalanx.schedules.LinearScaling(0.1, warmup_steps=5 * steps_per_epoch)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)

"When the minibatch size is multiplied by k, multiply the learning rate by k", and begin with
the rate of the small batch: "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
https://arxiv.org/abs/1706.02677, sections 2.1 and 2.2.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError

__all__ = ["LinearScaling", "WarmUp"]

_SCHEDULE: Any = keras.optimizers.schedules.LearningRateSchedule


@keras.saving.register_keras_serializable(package="phalanx")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types
    """Rises in a line to what another learning rate says, then follows that."""

    def __init__(self, learning_rate: Any, *, steps: int, start: float = 0.0) -> None:
        """Choose the rise.

        Args:
            learning_rate: a number, or a schedule of Keras's, which counts its own steps from
                the beginning of the rise.
            steps: the optimizer's steps that the rise takes; 0 for none.
            start: the share of the learning rate to begin with.

        Raises:
            ConfigurationError: a value that cannot work.
        """
        super().__init__()
        self.learning_rate = _rate(learning_rate)
        self.steps = steps
        self.start = start
        if not isinstance(steps, int) or steps < 0:
            raise ConfigurationError(
                f"steps must be a number of steps, 0 for none; found {steps!r}."
            )
        if not 0.0 <= start <= 1.0:
            raise ConfigurationError(f"start must be a share from 0 to 1; found {start!r}.")

    def __call__(self, step: Any) -> Any:
        """The learning rate at `step`, counted from 0."""
        full = keras.ops.cast(_at(self.learning_rate, step), keras.backend.floatx())
        done = keras.ops.cast(step, full.dtype) / max(self.steps, 1)
        risen = keras.ops.minimum(done, 1.0) if self.steps else 1.0
        return full * (self.start + (1.0 - self.start) * risen)

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make it again."""
        return {
            "learning_rate": _serialized(self.learning_rate),
            "steps": self.steps,
            "start": self.start,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make it again."""
        return cls(_made_again(config.pop("learning_rate")), **config)


@keras.saving.register_keras_serializable(package="phalanx")
class LinearScaling(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]  # Keras has no types
    """A learning rate times the number of replicas, which it reaches after a warm-up.

    For a global batch that grew with the number of replicas. Under Phalanx `batch_size` is
    the global batch: where it stayed the same, so should the learning rate.
    """

    def __init__(
        self, learning_rate: Any, *, factor: float | None = None, warmup_steps: int = 0
    ) -> None:
        """Choose how far to go.

        Args:
            learning_rate: the rate for one device, a number or a schedule of Keras's.
            factor: what to multiply it by; the number of replicas of the strategy in force
                where None. With another batch size: `global_batch / one_devices_batch`.
            warmup_steps: the optimizer's steps in which the factor rises from 1 in a line.

        Raises:
            ConfigurationError: a value that cannot work.
        """
        super().__init__()
        if factor is None:
            factor = float(tf.distribute.get_strategy().num_replicas_in_sync)
        if not factor > 0:
            raise ConfigurationError(f"factor must be above 0; found {factor!r}.")
        if not isinstance(warmup_steps, int) or warmup_steps < 0:
            raise ConfigurationError(
                f"warmup_steps must be a number of steps, 0 for none; found {warmup_steps!r}."
            )
        self.learning_rate = _rate(learning_rate)
        self.factor = factor
        self.warmup_steps = warmup_steps

    def __call__(self, step: Any) -> Any:
        """The learning rate at `step`, counted from 0."""
        full = keras.ops.cast(_at(self.learning_rate, step), keras.backend.floatx())
        if not self.warmup_steps:
            return full * self.factor
        done = keras.ops.minimum(keras.ops.cast(step, full.dtype) / self.warmup_steps, 1.0)
        return full * (1.0 + (self.factor - 1.0) * done)

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make it again; the factor stays, wherever that is."""
        return {
            "learning_rate": _serialized(self.learning_rate),
            "factor": self.factor,
            "warmup_steps": self.warmup_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make it again."""
        return cls(_made_again(config.pop("learning_rate")), **config)


def _rate(learning_rate: Any) -> Any:
    if isinstance(learning_rate, _SCHEDULE):
        return learning_rate
    if isinstance(learning_rate, (int, float)) and learning_rate >= 0:
        return float(learning_rate)
    raise ConfigurationError(
        "learning_rate must be a number from 0 on, or a keras.optimizers.schedules schedule; "
        f"found {learning_rate!r}."
    )


def _at(learning_rate: Any, step: Any) -> Any:
    return learning_rate(step) if isinstance(learning_rate, _SCHEDULE) else learning_rate


def _serialized(learning_rate: Any) -> Any:
    if isinstance(learning_rate, _SCHEDULE):
        return keras.optimizers.schedules.serialize(learning_rate)
    return learning_rate


def _made_again(learning_rate: Any) -> Any:
    if isinstance(learning_rate, dict):
        return keras.optimizers.schedules.deserialize(learning_rate)
    return learning_rate
