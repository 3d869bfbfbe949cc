"""A callback that knows the workers: where it runs, and what they say together."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import keras
import numpy as np

from phalanx.errors import ConfigurationError, WorkerMismatchError

Gather = Callable[[Sequence[Any]], list[list[Any]]]
"""Hands over this worker's arrays; returns every worker's, by rank."""


def _alone(arrays: Sequence[Any]) -> list[list[Any]]:
    return [list(arrays)]


@dataclass(frozen=True, kw_only=True)
class DistributedContext:
    """This worker's place among the workers that train together.

    Attributes:
        rank: this worker's number; the chief's is 0.
        workers: how many there are.
        replicas: how many replicas all workers have together.
        ps_tasks: how many other workers this one leads, each training at its own pace, as under
            parameter servers; 0 where workers train in step.
    """

    rank: int = 0
    workers: int = 1
    replicas: int = 1
    ps_tasks: int = 0
    gather: Gather = field(default=_alone, repr=False, compare=False)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes files and prints."""
        return self.rank == 0


_REDUCTIONS: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}


class Callback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Keras's `Callback`, with the other workers in reach.

    Set `runs_on`, `logs_every_n_steps` and `needs_every_batch` in the class, or on the object
    before `fit`.

    Attributes:
        runs_on: "all", or "chief" to have the hooks called there alone.
        logs_every_n_steps: at every how many batches the batch hooks need fresh `logs`, which
            cost an all-reduce; 0 for never. None lets Phalanx look at the hooks' code.
        needs_every_batch: whether the batch hooks must be called for each batch. False lets `fit`
            run several steps in one call where they take little time; the hooks are then called
            once for them, with the number of the last batch, as with `steps_per_execution`.
        cluster: `rank`, `workers`, `replicas` and `is_chief`, while a call runs.
    """

    runs_on: Literal["all", "chief"] = "all"
    logs_every_n_steps: int | None = None
    needs_every_batch: bool = True
    cluster: DistributedContext = DistributedContext()

    def all_reduce(
        self,
        values: Mapping[str, Any],
        how: Literal["sum", "mean", "min", "max"] = "sum",
    ) -> dict[str, Any]:
        """Each value over all workers; every worker must call it, with the same names.

        Args:
            values: numbers or arrays by name, each of the same shape on every worker.
            how: the reduction.

        Returns:
            The reduced values, equal on every worker: floats, or float64 arrays.

        Raises:
            WorkerMismatchError: workers gave other names, or values of other shapes.
            ConfigurationError: there is no such reduction, or the callback runs on the chief alone.
        """
        if how not in _REDUCTIONS:
            raise ConfigurationError(
                f"all_reduce knows {', '.join(_REDUCTIONS)}; found how={how!r}."
            )
        self._needs_every_worker("all_reduce")
        own = {name: np.asarray(values[name], np.float64) for name in sorted(values)}
        described = [f"{name}{list(value.shape)}" for name, value in own.items()]
        check = np.array([zlib.crc32(" ".join(described).encode())], np.int64)
        of_each = self.cluster.gather([check, *own.values()])
        odd = [rank for rank, (other, *_) in enumerate(of_each) if other[0] != check[0]]
        if odd:
            raise WorkerMismatchError(
                f"{type(self).__name__} asked to all-reduce {', '.join(described) or 'nothing'} on "
                f"worker {self.cluster.rank}; worker(s) {odd} gave other names or shapes. Give the "
                "same on every worker, 0 where a worker has nothing to add."
            )
        columns = zip(*(arrays for _, *arrays in of_each), strict=True)
        reduced = [_REDUCTIONS[how](np.stack(column), axis=0) for column in columns]
        return {n: v if np.ndim(v) else float(v) for n, v in zip(own, reduced, strict=True)}

    def any_worker(self, flag: bool) -> bool:
        """Whether `flag` is true on any worker; every worker must call it.

        Raises:
            ConfigurationError: the callback runs on the chief alone.
        """
        return any(self._gather_flags(flag, "any_worker"))

    def all_workers(self, flag: bool) -> bool:
        """Whether `flag` is true on all workers; every worker must call it.

        Raises:
            ConfigurationError: the callback runs on the chief alone.
        """
        return all(self._gather_flags(flag, "all_workers"))

    def _gather_flags(self, flag: bool, method: str) -> list[bool]:
        self._needs_every_worker(method)
        return [bool(arrays[0][0]) for arrays in self.cluster.gather([np.array([bool(flag)])])]

    def _needs_every_worker(self, method: str) -> None:
        if self.runs_on == "chief" and self.cluster.workers > 1:
            raise ConfigurationError(
                f"{type(self).__name__}.{method} needs every worker, but runs_on is 'chief', so "
                'the others never come. Set runs_on = "all".'
            )
