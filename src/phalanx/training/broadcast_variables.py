"""Give every worker the chief's values of variables, and say where others' differed."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.distributed.host_collectives import all_gather_rows
from phalanx.distributed.strategy import MultiWorkerStrategy, uses_horovod
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import WorkerMismatchError
from phalanx.monitoring.flight_recorder import flight

_log = logging.getLogger(__name__)


def broadcast_variables(
    strategy: MultiWorkerStrategy, topology: ReplicaTopology, variables: Sequence[Any]
) -> None:
    """Assign the chief's values on every worker; a collective that all workers must call.

    The chief warns of variables whose values differed, but for Horovod's scripts, whose workers
    begin with other seeds by custom.

    Args:
        strategy: connected to all workers.
        topology: this worker's.
        variables: Keras variables, in the same order on every worker.

    Raises:
        WorkerMismatchError: they are not equally many, or have other shapes or dtypes.
    """
    kinds = [zlib.crc32(f"{v.dtype}{tuple(v.shape)}".encode()) for v in variables]
    own = np.array([len(kinds), zlib.crc32(repr(kinds).encode())], np.int64)
    found = all_gather_rows(strategy, topology, own)
    if (found != own).any():
        row = np.array(kinds + [0] * (found[:, 0].max() - len(kinds)), np.int64)
        raise _unlike(
            variables, all_gather_rows(strategy, topology, row), found[:, 0], topology.rank
        )
    if not variables:
        return
    size = sum(v.value.dtype.size * math.prod(v.shape) for v in variables)
    with flight.collective("hand-over of the chief's state", size):
        values = strategy.collectives.broadcast([v.value for v in variables])
    differs = [not _is_equal(v, value) for v, value in zip(variables, values, strict=True)]
    everyones = all_gather_rows(strategy, topology, np.array(differs, np.int64)).astype(bool)
    numbers = np.flatnonzero(everyones.any(axis=0)).tolist()
    for number in numbers:
        variables[number].assign(values[number])
    if numbers and topology.is_chief and not uses_horovod(strategy):
        _warn([variables[number].path for number in numbers], everyones.any(axis=1))


def _is_equal(variable: Any, value: Any) -> bool:
    has_nan = bool(value.dtype.is_floating)
    return np.array_equal(variable.numpy(), value.numpy(), equal_nan=has_nan)


def _unlike(variables: Sequence[Any], kinds: Any, numbers: Any, rank: int) -> WorkerMismatchError:
    """The error that names the first variable which another worker does not have as this one."""
    first = int(np.flatnonzero((kinds != kinds[rank]).any(axis=0))[0])
    other = int(np.flatnonzero(kinds[:, first] != kinds[rank, first])[0])
    own = (
        f"{variables[first].path} of shape {tuple(variables[first].shape)}"
        if first < len(variables)
        else "no variable"
    )
    counts = ", ".join(f"{number} on worker {worker}" for worker, number in enumerate(numbers))
    return WorkerMismatchError(
        "Training needs the same variables of model and optimizer on every worker; found "
        f"{counts}, and worker {rank} has {own} where worker {other} has another or none. Build "
        "the same model and optimizer on every worker."
    )


def _warn(paths: Sequence[str], differed: Any) -> None:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    workers = ", ".join(map(str, np.flatnonzero(differed)))
    _log.warning(
        "Workers begin with different values of %s%s: worker %s differs from the chief. "
        "All continue with the chief's. Initialise and load the same weights on every worker.",
        paths[0],
        more,
        workers,
    )


class MadeInStep:
    """Gives every worker the chief's values of what the first step makes lazily."""

    def __init__(
        self,
        model: Any,
        strategy: MultiWorkerStrategy,
        topology: ReplicaTopology,
        known: Sequence[Any] = (),
    ) -> None:
        """Look for variables of model and optimizer next to those that are `known`.

        Args:
            model: a compiled model.
            strategy: connected to all workers.
            topology: this worker's.
            known: variables that are equal already.
        """
        self._model = model
        self._strategy = strategy
        self._topology = topology
        self._known = {id(v) for v in known}
        self._done = False

    def broadcast_from_chief(self) -> None:
        """Called where a step has been traced and not yet run, on all workers at the same step.

        What a layer makes where it is called first has a value only once the trace is done. Then
        nothing happens, and this is to be called again after the trace.

        Raises:
            WorkerMismatchError: workers have made variables of other shapes or dtypes.
        """
        if self._done:
            return
        with tf.init_scope(), tf.device(self._strategy.collectives.device):
            made = [v for v in state_variables(self._model) if id(v) not in self._known]
            if not all(v.value.is_initialized() for v in made):
                return
            self._done = True
            broadcast_variables(self._strategy, self._topology, made)


def state_variables(model: Any) -> list[Any]:
    """The variables of a model and of the optimizer that it was compiled with, each once."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *getattr(optimizer, "variables", [])]
    return list({id(v): v for v in variables}.values())
