"""The state of chance in one process: NumPy, Python, Keras and TensorFlow.

Seed generators of layers are variables of the model. What is left out: random operations of
TensorFlow that keep a state of their own in the graph (`tf.random.uniform` in a step), which
cannot be read; use `keras.random` with a `SeedGenerator`, or `tf.random.Generator`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from phalanx.keras_compat.rng import keras_generator, tensorflow_generator

_PYTHON_VERSION = 3  # of the tuple that `random.getstate` gives


def read_rng_state() -> dict[str, np.ndarray]:
    """The states of all generators, as arrays."""
    _, key, position, has_gauss, gauss = np.random.get_state()
    version, words, following = random.getstate()
    arrays: dict[str, np.ndarray] = {
        "numpy/key": np.array(key, np.uint32),
        "numpy/rest": np.array([position, has_gauss, gauss], np.float64),
    }
    if version == _PYTHON_VERSION:
        rest = [following is not None, following or 0.0]
        arrays["python/key"] = np.array(words, np.uint32)
        arrays["python/rest"] = np.array(rest, np.float64)
    if (generator := keras_generator()) is not None:
        arrays["keras"] = np.array(generator.state.numpy())
    if (generator := tensorflow_generator()) is not None:
        arrays["tensorflow"] = np.array(generator.state.numpy())
    return arrays


def write_rng_state(arrays: Mapping[str, np.ndarray]) -> None:
    """Restore the generators to what `read_rng_state` returned; missing ones stay as they are."""
    if "numpy/key" in arrays:
        position, has_gauss, gauss = arrays["numpy/rest"]
        key = arrays["numpy/key"]
        np.random.set_state(("MT19937", key, int(position), int(has_gauss), float(gauss)))
    if "python/key" in arrays:
        has_gauss, gauss = arrays["python/rest"]
        words = tuple(int(word) for word in arrays["python/key"])
        random.setstate((_PYTHON_VERSION, words, float(gauss) if has_gauss else None))
    generators = {"keras": keras_generator(), "tensorflow": tensorflow_generator()}
    for name, generator in generators.items():
        if name in arrays and generator is not None:
            generator.state.assign(arrays[name])
