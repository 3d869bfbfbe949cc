"""The shuffles of a dataset that give another order in each pass, and how far each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from phalanx.keras_compat.dataset_graph import Transformation, transformations
from phalanx.keras_compat.dataset_rebuild import MOST_BYTES, shuffle_like
from phalanx.keras_compat.shuffle_seeds import seeds_drawn, set_seeds_drawn

_OPENS_LATER = ("Concatenate", "Repeat")
"""Steps that open what is below them in the middle of a pass too."""
_MOST_ELEMENTS = 10_000


@dataclass
class _Shuffle:
    """One of them.

    Attributes:
        probe: a dataset that shuffles by the same seeds.
        opens_later: whether a pass may open it at any time, so that it is not to be disturbed.
        is_cached: whether it is read once, into a cache.
        first: the seeds that it had drawn before its data went to a cache.
    """

    probe: Any
    opens_later: bool
    is_cached: bool
    first: int | None = None

    def seeds_drawn(self) -> int:
        if not self.is_cached:
            return seeds_drawn(self.probe)
        if self.first is None:
            self.first = seeds_drawn(self.probe)
        return self.first


class Shuffles:
    """How many seeds each shuffle of a dataset has drawn, which decides the orders to come.

    A shuffle draws when it is opened: one below another one only once that is read, one that is
    repeated several times in a pass, one that two datasets share for both. So the number of passes
    over the dataset does not show it.
    """

    def __init__(self, dataset: Any) -> None:
        """Look at the shuffles of `dataset`."""
        self._dataset = dataset

    def seeds_drawn(self, *, within_pass: bool) -> tuple[int | None, ...]:
        """For each of them; 2 ms each.

        One that is below a cache in memory is said to have drawn what it had before it was read:
        another process has to fill the cache again, in the same order.

        Args:
            within_pass: whether an iterator over the dataset is in use; None then for those that it
                may open at any time.
        """
        return tuple(
            None if within_pass and one.opens_later else one.seeds_drawn() for one in self._all
        )

    def set_seeds_drawn(self, counts: Sequence[int | None]) -> None:
        """Let them continue in another process from what `seeds_drawn` gave."""
        for one, count in zip(self._all, counts, strict=True):
            if count is not None:
                set_seeds_drawn(one.probe, count)
                one.first = count

    def undo_drawn_for_caches(self) -> None:
        """Take back what those below a cache have drawn for an iterator that read nothing."""
        for one in self._all:
            if one.is_cached and one.first is not None:
                set_seeds_drawn(one.probe, one.first)

    @cached_property
    def _all(self) -> list[_Shuffle]:
        return list(_shuffles(transformations(self._dataset)))


def _shuffles(last: Transformation) -> Iterator[_Shuffle]:
    seen: set[int] = set()
    stack = [(last, False, False)]
    while stack:
        step, later, cached = stack.pop()
        if id(step) in seen:
            continue
        seen.add(id(step))
        if step.kind == "Shuffle" and step.reshuffles and (probe := _probe(step)) is not None:
            yield _Shuffle(probe, later, cached)
        later = later or step.kind in _OPENS_LATER
        cached = cached or step.kind == "Cache"
        stack.extend((one, later, cached) for one in step.inputs)


def _probe(shuffle: Transformation) -> Any:
    """A shuffle of one element that draws from the same generator, or the shuffle itself.

    None where both are slow: what is below it has to be copied to find the generator, and an empty
    buffer is read entry by entry.
    """
    if shuffle.bytes_below <= MOST_BYTES:
        return shuffle_like(shuffle, tf.data.Dataset.range(1), 1)
    return shuffle.dataset if (shuffle.buffer_size or 0) <= _MOST_ELEMENTS else None
