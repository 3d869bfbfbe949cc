"""The position of a training in its data, and how to get there again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DataPosition:
    """A point between two global batches.

    Attributes:
        batch: batches of the epoch under way that are trained.
        trained: global batches since the data was first opened, over all epochs.
        passes: how often the data was opened to be read.
        unread: how often it was opened besides; see `BatchSource.open_unread`.
        random: the words of the state that Python's generator had as the pass under way was opened,
            where its order is drawn from that; None elsewhere.
        division: how workers share out the files of the pass under way, where its batches depend
            on that; None elsewhere.
        seeds_before: how many seeds each shuffle had drawn as the pass under way was opened, in the
            order of `Shuffles`; None where that is unknown.
        seeds_drawn: the same now.
        taken: batches taken of the pass under way; None where the next batch opens a new one.
        learned: batches of a pass, where only its end showed them.
        seed: decides the order of shuffled arrays; None where the order is the data's own.
    """

    batch: int
    trained: int
    passes: int
    taken: int | None
    learned: int | None
    seed: int | None
    unread: int = 0
    random: tuple[int, ...] | None = None
    division: str | None = None
    seeds_before: tuple[int | None, ...] | None = None
    seeds_drawn: tuple[int | None, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)
