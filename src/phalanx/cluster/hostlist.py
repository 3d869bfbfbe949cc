"""Slurm's node lists: `n[1-3,07,10-12],login` as the names they stand for.

https://slurm.schedmd.com/scontrol.html#OPT_hostnames
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import NoReturn

from phalanx.errors import ClusterError

MOST_HOSTS = 65_536
_PIECE = re.compile(r"\[(?P<ranges>[^\[\]]*)\]|(?P<plain>[^\[\],]+)")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")


def expand(text: str) -> tuple[str, ...]:
    """The names in a node list, in its order.

    A part may have several brackets, anywhere in it. Numbers keep the zeros before them:
    `n[08-10]` is n08, n09, n10.

    Raises:
        ClusterError: it is no node list, or stands for more than `MOST_HOSTS` names.
    """
    names: list[str] = []
    for part in _parts(text):
        names += map("".join, product(*_pieces(part, text)))
        if len(names) > MOST_HOSTS:
            _refuse(text, f"more than {MOST_HOSTS} names")
    return tuple(names)


def _parts(text: str) -> Iterator[str]:
    """The parts between commas that stand outside of brackets."""
    part, depth = "", 0
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            _refuse(text, "brackets that do not match")
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if depth:
        _refuse(text, "a bracket that does not end")
    yield part


def _pieces(part: str, text: str) -> list[list[str]]:
    """What may stand at each place of a part, in order."""
    if not part:
        _refuse(text, "an empty name")
    return [
        [match["plain"]] if match["plain"] else _numbers(match["ranges"], text)
        for match in _PIECE.finditer(part)
    ]


def _numbers(ranges: str, text: str) -> list[str]:
    """`1-3,07` as 1, 2, 3, 07."""
    numbers: list[str] = []
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one)
        if match is None:
            _refuse(text, f"{one!r} in brackets, which is no number or range")
        first, last = match["first"], match["last"] or match["first"]
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            _refuse(text, f"the range {one}")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _refuse(text: str, found: str) -> NoReturn:
    raise ClusterError(
        f"A node list must be such as n[1-3,07],login; found {found} in {text[:200]!r}. Name the "
        "hosts by --hosts."
    )
