"""The time between two steps of a `fit`, taken by a callback that looks at nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from step_time.laps import Lap, Laps
from step_time.workload import GLOBAL_BATCH, samples


def fit_block(
    keras: Any,
    fit: Callable[..., Any],
    name: str,
    model: Any,
    steps: int,
    warm_up: int,
    callbacks: Sequence[Any] = (),
) -> Lap:
    """A step of one call of `fit` on arrays, without its first `warm_up` steps."""
    laps = Laps()

    class Meter(keras.callbacks.Callback):
        _supports_tf_logs = True  # tf_keras: do not fetch the logs for this callback.

        def on_train_batch_end(self, batch, logs=None):
            laps.step_ended()

    x, y = samples(name, warm_up + steps)
    all_callbacks = [*callbacks, Meter()]
    fit(model, x, y, batch_size=GLOBAL_BATCH, epochs=1, verbose=0, callbacks=all_callbacks)
    return laps.last(steps, of=warm_up + steps)
