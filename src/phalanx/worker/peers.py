"""The workers' last meeting."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def wait_for_peers(strategy: Any) -> None:
    """Return when every worker has come here.

    Who leaves first takes the connection with it, and the others would fail although
    their training is done.
    """

    @tf.function  # type: ignore[untyped-decorator]  # Run eagerly, it warns of being slow.
    def meet() -> Any:
        one = strategy.run(lambda: tf.constant(1.0))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, one, axis=None)

    meet()
