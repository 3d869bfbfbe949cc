"""From a record's fields, whatever was written there, to an event of the types that it declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from phalanx.monitoring.events import EVENT_TYPES, Event, Numbers, Record, field_names


class EventFieldError(ValueError):
    """A record lacks a field that its kind needs, or the field is of another type."""


E = TypeVar("E", bound=Event)


def parse_event(
    kind: type[E], record: Record, *, writer_rank: int | None, attempt: int, fit: int | None
) -> E:
    """A record as an event.

    Raises:
        EventFieldError: a field that the kind needs is missing or of another type.
    """
    written = number(record.get("t"))
    if written is None or not math.isfinite(written):
        raise EventFieldError
    place = {"t": written, "writer_rank": writer_rank, "attempt": attempt, "fit": fit}
    return kind(**place | {name: read(record.get(name)) for name, read in _READERS[kind]})


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
    """An integer; None if it is none."""
    if type(value) is int:
        return value
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found % 1 == 0 else None


def text(value: object) -> str | None:
    """A string; None if it is none."""
    return value if isinstance(value, str) else None


def _numbers(value: object) -> Numbers:
    if not isinstance(value, Mapping):
        return {}
    found = {str(name): number(each) for name, each in value.items()}
    return {name: each for name, each in found.items() if each is not None}


def texts(value: object) -> tuple[str, ...]:
    """The strings of a list; () if it is none."""
    return tuple(filter(None, map(text, value))) if isinstance(value, (list, tuple)) else ()


def _integers(value: object) -> tuple[int, ...]:
    found = map(integer, value) if isinstance(value, (list, tuple)) else ()
    return tuple(each for each in found if each is not None)


def texts_by_name(value: object) -> Mapping[str, str]:
    """The strings of a mapping by name; {} if it is none."""
    if not isinstance(value, Mapping):
        return {}
    return {str(name): each for name, each in value.items() if isinstance(each, str)}


def _mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    found = value if isinstance(value, (list, tuple)) else ()
    return tuple(each for each in found if isinstance(each, Mapping))


def _required(read: Callable[[object], Any]) -> Callable[[object], Any]:
    def read_or_refuse(value: object) -> Any:
        found = read(value)
        if found is None:
            raise EventFieldError
        return found

    return read_or_refuse


_BY_TYPE: dict[object, Callable[[object], Any]] = {
    bool: lambda value: value is True,
    int: _required(integer),
    int | None: integer,
    float: _required(number),
    float | None: number,
    str: _required(text),
    str | None: text,
    Numbers: _numbers,
    tuple[int, ...]: _integers,
    tuple[str, ...]: texts,
    Mapping[str, str]: texts_by_name,
    tuple[Mapping[str, Any], ...]: _mappings,
}


def _readers(kind: type[Event]) -> tuple[tuple[str, Callable[[object], Any]], ...]:
    types = get_type_hints(kind)
    return tuple((name, _BY_TYPE[types[name]]) for name in field_names(kind))


_READERS = {kind: _readers(kind) for kind in EVENT_TYPES.values()}
