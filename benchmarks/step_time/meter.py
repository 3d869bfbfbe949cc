"""The time of one epoch of `fit`, with no callback between its steps, as in most trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from step_time.laps import Lap, Timer
from step_time.workload import GLOBAL_BATCH, samples


def fit_block(
    keras: Any,
    fit: Callable[..., Any],
    name: str,
    model: Any,
    steps: int,
    callbacks: Sequence[Any] = (),
) -> Lap:
    """A step of the second epoch of `steps` steps of one call of `fit` on arrays."""
    laps = []

    class Meter(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.timer = Timer()

        def on_epoch_end(self, epoch, logs=None):
            laps.append(self.timer.lap(steps))

    x, y = samples(name, steps)
    all_callbacks = [*callbacks, Meter()]
    fit(model, x, y, batch_size=GLOBAL_BATCH, epochs=2, verbose=0, callbacks=all_callbacks)
    return laps[1]
