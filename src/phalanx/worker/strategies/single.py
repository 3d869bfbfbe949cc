"""One device: TensorFlow's default strategy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from phalanx.worker.strategies.factory import StrategyRequest


def make(request: StrategyRequest) -> Any:
    """The strategy that is in force where there is none."""
    del request
    return tf.distribute.get_strategy()
