"""What Phalanx needs to know of `tf.distribute`'s own datasets.

Private names used: `PerReplicaSpec._value_specs`.
"""

from __future__ import annotations

from typing import Any

import keras


def spec_of_one_replica(spec: Any) -> Any:
    """`spec` with the first replica's part in place of each `PerReplicaSpec`."""

    def first(one: Any) -> Any:
        parts = getattr(one, "_value_specs", None)
        return parts[0] if parts else one

    return keras.tree.map_structure(first, spec)
