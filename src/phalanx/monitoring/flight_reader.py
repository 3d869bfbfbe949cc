"""Reading a flight file, whole or half written, of a worker that lives or not."""

from __future__ import annotations

from pathlib import Path

from phalanx.monitoring.flight_format import (
    ENDINGS,
    HEADER,
    HEADER_SIZE,
    KINDS,
    MAGIC,
    NOTHING,
    NOW,
    NOW_AT,
    SLOT,
    Flight,
    FlightEvent,
)


def read_flight(path: Path) -> Flight | None:
    """What `path` holds; None where there is no such file, or none of this form."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < HEADER_SIZE or not raw.startswith(MAGIC):
        return None
    _, texts_size, slot_size, slots, *numbers, host = HEADER.unpack_from(raw)
    rank, attempt, workers, pid, started, alive, ended = numbers
    if slot_size != SLOT.size:
        return None
    texts = _texts(raw[HEADER_SIZE : HEADER_SIZE + texts_size])
    first = HEADER_SIZE + texts_size
    count = min(slots, max(0, len(raw) - first) // slot_size)
    found = (_event(raw, first + i * slot_size, texts) for i in range(count))
    events = sorted((e for e in found if e is not None), key=lambda event: event.begin)
    events += _now(raw, texts, number=max((e.number for e in events), default=0) + 1)
    return Flight(
        rank=rank,
        attempt=attempt,
        workers=workers,
        pid=pid,
        host=host.rstrip(b"\0").decode("utf-8", "replace"),
        started=started,
        alive=alive,
        ended=ended or None,
        events=tuple(events),
    )


def current_phase(path: Path) -> tuple[object, ...] | None:
    """What differs whenever the worker has started another phase; None where that is unknown.

    Reads the header alone. Unlike event logs, a flight file has its room from the start, so this
    also answers on a full disk.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(HEADER_SIZE)
    except OSError:
        return None
    return NOW.unpack_from(raw, NOW_AT) if len(raw) == HEADER_SIZE else None


def _texts(raw: bytes) -> list[str]:
    found, at = [""], 0
    while at + 2 <= len(raw):
        length = int.from_bytes(raw[at : at + 2], "little")
        if length == 0 or at + 2 + length > len(raw):
            break
        found.append(raw[at + 2 : at + 2 + length].decode("utf-8", "replace"))
        at += 2 + length
    return found


def _now(raw: bytes, texts: list[str], *, number: int) -> list[FlightEvent]:
    """The phase that continues, if there is one."""
    begin, step, epoch, name = NOW.unpack_from(raw, NOW_AT)
    if begin == 0:
        return []
    return [
        FlightEvent(
            number=number,
            kind="phase",
            name=_text(texts, name),
            begin=begin,
            step=_number(step),
            epoch=_number(epoch),
        )
    ]


def _event(raw: bytes, at: int, texts: list[str]) -> FlightEvent | None:
    number, begin, step, size, epoch, steps, name, kind, *rest = SLOT.unpack_from(raw, at)
    end, came, done, signature, how, known, *dimensions, again = rest
    if number == 0 or number != again or kind >= len(KINDS) or how >= len(ENDINGS):
        return None
    return FlightEvent(
        number=number,
        kind=KINDS[kind],
        name=_text(texts, name),
        begin=begin,
        end=end or None,
        how=ENDINGS[how],
        step=_number(step),
        epoch=_number(epoch),
        steps=steps,
        done=_number(done),
        came=came or None,
        bytes=_number(size),
        signature=_text(texts, signature),
        dimensions=tuple(dimensions[:known]),
    )


def _number(value: int) -> int | None:
    return None if value == NOTHING else value


def _text(texts: list[str], number: int) -> str:
    return texts[number] if number < len(texts) else ""
