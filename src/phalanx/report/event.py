"""A record as values with types: what all kinds have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

Numbers = Mapping[str, float]
"""Name -> number, possibly not finite; names without a number are left out."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One record. Its place is told by the lines above it in the same file.

    Attributes:
        t: when it was written, seconds since the epoch.
        rank: of the worker that wrote it; None for the launcher.
        attempt: the start of the worker group to which it belongs.
        fit: the number of the `fit` in which it was written; None outside of any.
    """

    KIND: ClassVar[str]
    PLACE: ClassVar[tuple[str, ...]] = ("t", "rank", "attempt", "fit")

    t: float
    rank: int | None
    attempt: int
    fit: int | None
