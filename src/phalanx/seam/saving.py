"""Let a worker save a model by itself: saving must make no variables.

`saving_lib.get_attr_skipset("Optimizer")` makes an optimizer only to look at its
attributes, and does so at every save, since it stores the answer under another name than
it looks it up by. Under several workers, making a variable is a collective: a worker that
saves alone (`if chief: model.save(...)`, `ModelCheckpoint` on the chief) waits for ever,
or meets the others in another collective.

Private name used: `keras.src.saving.saving_lib.get_attr_skipset`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from phalanx.seam.patching import Patches


def _replacements() -> Mapping[tuple[Any, str], Any]:
    saving = importlib.import_module("keras.src.saving.saving_lib")
    return {(saving, "get_attr_skipset"): _without_strategy(saving.get_attr_skipset)}


def _without_strategy(original: Callable[[str], set[str]]) -> Callable[[str], set[str]]:
    def get_attr_skipset(obj_type: str) -> set[str]:
        with tf.Graph().as_default():  # Strategies belong to a graph: in this one there is none.
            return original(obj_type)

    return get_attr_skipset


saving_makes_no_variables = Patches(_replacements)
"""Enter it, and a worker can save alone; leave it, and Keras is as it was."""
