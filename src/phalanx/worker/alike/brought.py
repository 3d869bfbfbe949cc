"""What a worker brings to a collective, and how what several bring differs, in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor that is brought.

    Attributes:
        name: a variable's path, or what it is.
        shape: its dimensions; -1 for one that workers may have of different sizes.
        dtype: its name; "no gradient" where there is none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("any" if size < 0 else str(size) for size in self.shape)
        comma = "," * (len(self.shape) == 1)
        return self.dtype if self.dtype == NO_GRADIENT else f"({sizes}{comma}) {self.dtype}"


NO_GRADIENT = "no gradient"


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What one worker brings to one collective.

    Attributes:
        step: the step it is at, counted from 1.
        what: what is to be brought together, such as "gradients".
        tensors: the tensors.
    """

    step: int
    what: str
    tensors: tuple[Tensor, ...] = ()

    @property
    def place(self) -> str:
        """Where the worker is, in words."""
        return f"at step {self.step} ({self.what})"

    def to_bytes(self) -> bytes:
        """For another process."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Brought:
        """What `to_bytes` wrote."""
        fields = json.loads(text)
        tensors = [Tensor(**{**each, "shape": tuple(each["shape"])}) for each in fields["tensors"]]
        return cls(step=fields["step"], what=fields["what"], tensors=tuple(tensors))


def difference(brought: Mapping[int, Brought]) -> str | None:
    """Who brings something else than the others, and what; None where all bring the same.

    Args:
        brought: what each worker brings, by rank.
    """
    places = {rank: (each.step, each.what) for rank, each in brought.items()}
    if odd := _odd(places):
        there = brought[_others(odd, places)]
        here = [f"worker {rank} is {brought[rank].place}" for rank in odd]
        return f"{', '.join(here)}, {_the_others(odd, places)} {there.place}"
    tensors = {rank: each.tensors for rank, each in brought.items()}
    if not (odd := _odd(tensors)):
        return None
    there = brought[_others(odd, tensors)]
    others = _the_others(odd, tensors)
    found = [
        f"worker {rank} brings {_first_difference(brought[rank].tensors, there.tensors, others)}"
        for rank in odd
    ]
    return f"step {there.step}, {there.what}: {'; '.join(found)}"


def _odd(values: Mapping[int, object]) -> list[int]:
    """The ranks that are not with the most; with as many on both sides, not with the chief."""
    counts = Counter(values.values())
    most = max(counts.values())
    common = next(value for rank, value in sorted(values.items()) if counts[value] == most)
    return [rank for rank, value in sorted(values.items()) if value != common]


def _others(odd: Sequence[int], values: Mapping[int, object]) -> int:
    return next(rank for rank in sorted(values) if rank not in odd)


def _the_others(odd: Sequence[int], values: Mapping[int, object]) -> str:
    rest = [rank for rank in sorted(values) if rank not in odd]
    return f"worker {rest[0]}" if len(rest) == 1 else "the others"


def _first_difference(here: Sequence[Tensor], there: Sequence[Tensor], others: str) -> str:
    for mine, theirs in zip_longest(here, there):
        if mine == theirs:
            continue
        if mine is None:
            return f"no {theirs.name}, {others} {theirs}"
        if theirs is None:
            return f"{mine.name} {mine}, {others} none such"
        if mine.name == theirs.name:
            return f"{mine.name} {mine}, {others} {theirs}"
        return f"{mine.name} {mine} in place of {theirs.name} {theirs}"
    return "the same"
