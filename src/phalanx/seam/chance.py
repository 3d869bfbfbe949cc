"""The generators of chance of this process that nobody hands to anybody.

Private names used: `keras.src.random.seed_generator.global_seed_generator` (what layers and
`keras.random` draw from when they are given no seed), `keras.src.backend.common.global_state`
and `tensorflow.python.ops.stateful_random_ops.global_generator`; guarded by
tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import importlib
from typing import Any


def keras_generator() -> Any:
    """Keras's `SeedGenerator` for all that names none; None while nobody has drawn from it."""
    module = importlib.import_module("keras.src.random.seed_generator")
    state = importlib.import_module("keras.src.backend.common.global_state")
    key = module.GLOBAL_SEED_GENERATOR
    return None if state.get_global_attribute(key) is None else module.global_seed_generator()


def tensorflow_generator() -> Any:
    """What `tf.random.get_global_generator()` gives; None while nobody has asked for it."""
    module = importlib.import_module("tensorflow.python.ops.stateful_random_ops")
    return module.global_generator
