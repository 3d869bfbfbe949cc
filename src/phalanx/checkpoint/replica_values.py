"""A variable's copies on this process's replicas: read them, write them.

Most variables are the same on every replica. Metrics, and what layers assign on their own in
a step, differ until they are aggregated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.distributed.topology import ReplicaTopology

LOCAL = "local"


def replica_components(variable: Any) -> Sequence[Any]:
    """The TensorFlow variables behind a Keras variable, one for each local replica."""
    value = variable.value
    return value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)


def read_component(replica: int, variable: Any) -> np.ndarray:
    """What this process's `replica`-th replica has for a variable, in host memory of its own."""
    copies = replica_components(variable)
    return np.array(copies[replica if len(copies) > 1 else 0].numpy())


def assign(variable: Any, value: Any) -> None:
    """Give every copy on this process the value; no peer is asked."""
    for copy in replica_components(variable):
        copy.assign(value)


@dataclass(frozen=True)
class Rows:
    """A variable as what a checkpoint takes rows of: one copy, read when it is asked for.

    On a CPU the rows are the variable's own memory, which TensorFlow never changes while somebody
    holds it: an assignment finds that it is shared and takes fresh memory.
    """

    variable: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        return tuple(self.variable.shape)

    @property
    def dtype(self) -> str:
        """The dtype's name."""
        return str(self.variable.dtype)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """These rows in host memory; all for `...`."""
        first = replica_components(self.variable)[0]
        if "CPU" in first.device:
            whole: np.ndarray = np.asarray(first.read_value())
            return whole if rows is Ellipsis else whole[rows]
        return np.asarray(first.read_value() if rows is Ellipsis else first[rows])


def local_key(replica: int, name: str) -> str:
    """The name of a replica's copy of a variable: "local/2/metrics/0/total"."""
    return f"{LOCAL}/{replica}/{name}"


def local_arrays(variables: Mapping[str, Any], topology: ReplicaTopology) -> dict[str, np.ndarray]:
    """The copies of this process by name and replica: "local/2/metrics/0/total"."""
    return {
        local_key(topology.first + i, name): np.array(copy.read_value().numpy())
        for name, variable in variables.items()
        for i, copy in enumerate(replica_components(variable))
    }


def assign_local(
    variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray], topology: ReplicaTopology
) -> None:
    """Give each copy what its replica had; with another number of replicas, share it out.

    What adds up (metrics) goes to replica 0 as a whole, what is a mean goes to all.
    """
    replicas = sorted({int(key.split("/")[1]) for key in arrays if key.startswith(f"{LOCAL}/")})
    for name, variable in variables.items():
        of_each = [arrays.get(local_key(replica, name)) for replica in replicas]
        values = [value for value in of_each if value is not None]
        if not values:
            continue
        for i, copy in enumerate(replica_components(variable)):
            replica = topology.first + i
            if len(values) == topology.total:
                copy.assign(values[replica])
            else:
                copy.assign(_shared_out(variable, values, replica))


def _shared_out(variable: Any, values: Sequence[np.ndarray], replica: int) -> np.ndarray:
    if variable.aggregation == "sum":
        total: np.ndarray = np.sum(values, axis=0).astype(values[0].dtype)
        return total if replica == 0 else np.zeros_like(total)
    if values[0].dtype.kind == "f":
        mean: np.ndarray = np.mean(values, axis=0).astype(values[0].dtype)
        return mean
    return values[0]
