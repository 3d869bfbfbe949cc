"""What a callback knows of the workers, and how it reaches them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Gather = Callable[[Sequence[Any]], list[list[Any]]]
"""Hands over this worker's arrays; returns every worker's, by rank."""


def _alone(arrays: Sequence[Any]) -> list[list[Any]]:
    return [list(arrays)]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """This worker's place among the workers that train together.

    Attributes:
        rank: this worker's number; the chief's is 0.
        workers: how many there are.
        replicas: how many replicas all workers have together.
        servants: how many other workers this one leads, each training at its own pace, as under
            parameter servers; 0 where workers train in step.
    """

    rank: int = 0
    workers: int = 1
    replicas: int = 1
    servants: int = 0
    gather: Gather = field(default=_alone, repr=False, compare=False)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one that writes files and prints."""
        return self.rank == 0
