"""The random generators and seeds that belong to the process.

Private names used: `keras.src.random.seed_generator.global_seed_generator` (what layers and
`keras.random` draw from when they are given no seed), `keras.src.backend.common.global_state`,
`tensorflow.python.ops.stateful_random_ops.global_generator` and
`tensorflow.python.eager.context.global_seed`; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import importlib
import random
from functools import lru_cache
from typing import Any

from phalanx.worker.seed import LauncherSeed

_KERAS_GENERATOR = "global_seed_generator"
"""What `keras.src.random.seed_generator` calls its attribute; Keras 3.12 has no constant for it."""


def global_seed() -> int | None:
    """What `tf.random.set_seed` was last given; None where it was not called."""
    seed: int | None = importlib.import_module("tensorflow.python.eager.context").global_seed()
    return seed


def is_seeded_by_script() -> bool:
    """Whether the script, and not the launcher, seeded TensorFlow."""
    seed = global_seed()
    return seed is not None and not isinstance(seed, LauncherSeed)


def keras_generator() -> Any:
    """Keras's `SeedGenerator` for all that names none; None before the first draw."""
    module = importlib.import_module("keras.src.random.seed_generator")
    state = importlib.import_module("keras.src.backend.common.global_state")
    drawn = state.get_global_attribute(_KERAS_GENERATOR) is not None
    return module.global_seed_generator() if drawn else None


def tensorflow_generator() -> Any:
    """What `tf.random.get_global_generator()` gives; None before the first call."""
    module = importlib.import_module("tensorflow.python.ops.stateful_random_ops")
    return module.global_generator


def order_seed() -> int | None:
    """A seed for the order of shuffled arrays, from the launcher's seed where there is one.

    The script's own generators are unchanged.

    Returns:
        0 to 2**31 - 2; None where the script sets a seed, so that the order is Keras's.
    """
    return None if is_seeded_by_script() else _draws().randrange(2**31 - 1)


@lru_cache(maxsize=1)
def _draws() -> random.Random:
    return random.Random(global_seed())


def forget_draws() -> None:
    """Let the next draw begin from the global seed again."""
    _draws.cache_clear()
