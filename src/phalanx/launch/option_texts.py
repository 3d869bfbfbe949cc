"""Options as they are typed, turned into values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from phalanx.cluster.spec import DeviceSpec
from phalanx.errors import OptionError

_WORKERS = re.compile(r"(?:(?P<least>\d+):)?(?P<most>\d+)")
_DEVICES = re.compile(r"(?:(?P<kind>cpu|gpu|logical-gpu):)?(?P<count>\d+)")
_ENV = "--env"
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)", re.DOTALL)


def parse_workers(text: str) -> tuple[int | None, int]:
    """`3` as (None, 3), and `2:3`, the fewest and the most, as (2, 3).

    Raises:
        OptionError: the text is neither.
    """
    match = _WORKERS.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"--workers must be a number, or MIN:MAX such as 2:4; found {text!r}.")
    least = match["least"]
    return (None if least is None else int(least)), int(match["most"])


def parse_devices(text: str) -> DeviceSpec:
    """`2`, `cpu:2` or `gpu:1` as a value.

    Raises:
        OptionError: the text is none of these.
    """
    match = _DEVICES.fullmatch(text.strip().lower())
    if match is None or int(match["count"]) < 1:
        raise OptionError(
            f"--devices-per-worker must be a number of at least 1, such as 2, cpu:2 or gpu:1; "
            f"found {text!r}."
        )
    return DeviceSpec(count=int(match["count"]), kind=match["kind"] or "auto")  # type: ignore[arg-type]


def parse_env(items: list[str]) -> dict[str, str]:
    """`["A=1", "B=x=y"]` as a mapping.

    Raises:
        OptionError: an item has no name or no `=`.
    """
    env: dict[str, str] = {}
    for item in items:
        match = _VARIABLE.fullmatch(item)
        if match is None:
            raise OptionError(f"--env must be NAME=VALUE; found {item!r}.")
        env[match["name"]] = match["value"]
    return env


def without_env_values(words: Sequence[str]) -> list[str]:
    """Options of `phalanx run` as they may be written down: of each `--env` the name alone.

    The value may be a key or a password.
    """
    return [
        word.partition("=")[0]
        if before == _ENV
        else f"{_ENV}={word.removeprefix(f'{_ENV}=').partition('=')[0]}"
        if word.startswith(f"{_ENV}=")
        else word
        for before, word in pairwise(["", *words])
    ]


def without_env(words: Sequence[str]) -> list[str]:
    """Options of `phalanx run` without any `--env`."""
    return [
        word
        for before, word in pairwise(["", *words])
        if _ENV not in (before, word) and not word.startswith(f"{_ENV}=")
    ]
