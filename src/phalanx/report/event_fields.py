"""From a record's fields, whatever was written there, to values of the types that we want."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from phalanx.monitoring.event_parsing import Record
from phalanx.report.events import KINDS, Event, Numbers

E = TypeVar("E", bound=Event)

ALIASES = {"of": "rank"}
"""A field that names another worker than the one that wrote it."""


class UnfitError(ValueError):
    """A record lacks what its kind needs."""


def number(value: object) -> float | None:
    """A number, which may be one of the strings "nan", "inf" and "-inf"; None if it is none."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def integer(value: object) -> int | None:
    """A whole number; None if it is none."""
    if type(value) is int:
        return value
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found % 1 == 0 else None


def text(value: object) -> str | None:
    """A string; None if it is none."""
    return value if isinstance(value, str) else None


def numbers(value: object) -> Numbers:
    """The numbers of a mapping by name; {} if it is none."""
    if not isinstance(value, Mapping):
        return {}
    found = {str(name): number(each) for name, each in value.items()}
    return {name: each for name, each in found.items() if each is not None}


def texts(value: object) -> tuple[str, ...]:
    """The strings of a list; () if it is none."""
    return tuple(filter(None, map(text, value))) if isinstance(value, (list, tuple)) else ()


def integers(value: object) -> tuple[int, ...]:
    """The whole numbers of a list; () if it is none."""
    found = map(integer, value) if isinstance(value, (list, tuple)) else ()
    return tuple(each for each in found if each is not None)


def texts_by_name(value: object) -> Mapping[str, str]:
    """The strings of a mapping by name; {} if it is none."""
    if not isinstance(value, Mapping):
        return {}
    return {str(name): each for name, each in value.items() if isinstance(each, str)}


def _needed(read: Callable[[object], Any]) -> Callable[[object], Any]:
    def read_or_refuse(value: object) -> Any:
        found = read(value)
        if found is None:
            raise UnfitError
        return found

    return read_or_refuse


_READERS: dict[object, Callable[[object], Any]] = {
    bool: lambda value: value is True,
    int: _needed(integer),
    int | None: integer,
    float | None: number,
    str: _needed(text),
    str | None: text,
    Numbers: numbers,
    tuple[int, ...]: integers,
    tuple[str, ...]: texts,
    Mapping[str, str]: texts_by_name,
}


def _plan(kind: type[Event]) -> tuple[tuple[str, str, Callable[[object], Any]], ...]:
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.name not in Event.PLACE]
    return tuple((name, ALIASES.get(name, name), _READERS[types[name]]) for name in names)


_PLANS = {kind: _plan(kind) for kind in KINDS.values()}


def read_event(
    kind: type[E], record: Record, *, rank: int | None, attempt: int, fit: int | None
) -> E:
    """A record as an event.

    Raises:
        UnfitError: a field without which the event means nothing is missing or of another type.
    """
    written = number(record.get("t"))
    if written is None or not math.isfinite(written):
        raise UnfitError
    found = {name: read(record.get(field)) for name, field, read in _PLANS[kind]}
    return kind(t=written, rank=rank, attempt=attempt, fit=fit, **found)
