"""Let `int(variable)` and `float(variable)` read a replicated variable.

Keras asks TensorFlow's variable for the number, and a `MirroredVariable` does not know how,
so `int(optimizer.iterations)` fails under a strategy; Keras's own OrbaxCheckpoint says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from phalanx.keras_compat.patches import Patches


def _replacements() -> Mapping[tuple[Any, str], Any]:
    return {
        (keras.Variable, "__int__"): _read(int, keras.Variable.__int__),
        (keras.Variable, "__float__"): _read(float, keras.Variable.__float__),
    }


def _read(number: Callable[[Any], Any], original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(variable: Any) -> Any:
        replicated_job = isinstance(variable.value, tf.distribute.DistributedValues)
        return (
            number(variable.numpy())
            if replicated_job and variable.ndim == 0
            else original(variable)
        )

    return read


convert_variables_to_numbers = Patches(_replacements)
"""Enter it, and replicated variables can be read as numbers; leave it, and Keras is as it was."""
