"""Reading a launcher's number and the number of all out of variables."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.errors import ClusterError


def number(environment: Mapping[str, str], name: str) -> int:
    """A variable that must be a whole number from 0.

    Raises:
        ClusterError: it is missing, or is not.
    """
    text = environment.get(name, "").strip()
    if not text.isdecimal():
        found = f"found {text!r}" if name in environment else "it is not set"
        raise ClusterError(
            f"{name} must be a whole number from 0; {found}. Set it, or give --hosts."
        )
    return int(text)


def rank_of(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    """This launcher's number, and how many there are.

    Args:
        environment: the variables.
        rank: the variable with the number.
        size: the variable with the number of all.

    Raises:
        ClusterError: one is missing or no number, or the number is not below the number of all.
    """
    mine, every = number(environment, rank), number(environment, size)
    if mine >= every:
        raise ClusterError(
            f"{rank} must be less than {size}; found {mine} and {every}. Fix one of them, or "
            "unset both."
        )
    return mine, every
