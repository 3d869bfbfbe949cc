"""What Phalanx needs to know of `tf.distribute`'s own datasets and clusters.

Private names used: `PerReplicaSpec._value_specs`, `ParameterServerStrategy._cluster_resolver`.
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


def num_ps_workers(strategy: Any) -> int:
    """How many workers compute for the chief of a `ParameterServerStrategy`."""
    return int(strategy._cluster_resolver.cluster_spec().num_tasks("worker"))
