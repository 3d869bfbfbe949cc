"""Where a worker is or was, by its flight recorder: its own word of every moment.

A heartbeat tells a phase. The recorder tells more: whether the batch of the step under way has
come, which collective of the host it is in, and what it did when it failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from phalanx.flight.form import Flight, FlightEvent
from phalanx.flight.reading import read_flight
from phalanx.launch.layout import AttemptPaths
from phalanx.launch.whereabouts import Position, whereabouts
from phalanx.launch.who_waits import batches_that_differ, who_was_where

_NANO = 1e9


def refined(position: Position, file: Path) -> Position:
    """`position`, known from heartbeats, and what the flight recorder in `file` adds to it.

    A recorder that says something else than the heartbeat was left behind by another process.
    """
    flight = read_flight(file)
    told = None if flight is None else position_of(flight)
    if told is None or told.failed or told.phase not in (position.phase, "input"):
        return position
    return told if position.phase in ("compute", "input") else replace(told, since=position.since)


def position_of(flight: Flight) -> Position | None:
    """Where the worker is, or was when it wrote last; None before it wrote anything."""
    events = flight.events
    if not events:
        return None
    doing = [event for event in events if event.kind != "phase"]
    phase = next((e for e in reversed(events) if e.kind == "phase"), None)
    name = phase.name if phase is not None else "start"
    known = max((e for e in events if e.epoch is not None), key=_number, default=None)
    epoch = None if known is None else known.epoch
    batch = next((e.batch for e in reversed(_of_this_call(events)) if e.came is not None), "")
    at = next((e for e in reversed(doing) if e.is_open), None) or _failed(flight, doing)
    if at is None:
        last = events[-1]
        step = _trained_after(last)
        since = phase.begin if phase is not None and phase.is_open else last.end or last.begin
        return Position(
            phase=name,
            since=since / _NANO,
            step=step,
            epoch=epoch,
            waits=None if name == "compute" else False,  # Keras may add up something by itself.
            batch=batch,
        )
    within = _within(at, name, was_looked_at=flight.alive >= at.begin)
    return replace(within, epoch=epoch, batch=batch, failed=not at.is_open)


def last_words(paths: AttemptPaths, ended: Mapping[int, float], cause: int) -> list[str]:
    """Where the workers were when one failed, in a line or two; none where that is not known.

    Args:
        paths: where their flight recorders are.
        ended: when each of them ended, in seconds since the epoch.
        cause: the one that failed first.
    """
    found = {
        rank: whereabouts(position, "", until=at)
        for rank, at in ended.items()
        if (position := _position_in(paths.flight(rank))) is not None
    }
    if cause not in found or not _has_trained(found[cause].position):
        return []
    line = who_was_where(found, cause)
    return [f"{line[0].upper()}{line[1:]}.", *batches_that_differ(found)]


def _position_in(file: Path) -> Position | None:
    flight = read_flight(file)
    return None if flight is None else position_of(flight)


def _has_trained(position: Position) -> bool:
    return position.phase not in ("start", "idle") or position.waits_in is not None


def _within(event: FlightEvent, phase: str, *, was_looked_at: bool) -> Position:
    """The position of a worker in the midst of a step, or a collective.

    Args:
        event: the step or the collective.
        phase: the phase that goes on.
        was_looked_at: whether the recorder has looked which batches came since it began.
    """
    begun = event.begin / _NANO
    if event.kind == "collective":
        return Position(phase=phase, since=begun, step=event.step, waits=True, waits_in=event.name)
    before = _trained_before(event)
    if event.done is None:  # Nobody tells of its batch: the phase may.
        waits = phase != "input"
        return Position(phase=phase, since=begun, step=before, waits=waits)
    if event.is_open and not was_looked_at:
        return Position(phase=phase, since=begun, step=before)
    if event.done == 0 or event.came is None:
        return Position(phase="input", since=begun, step=before, waits=False)
    is_train = event.kind == "train"
    ended = event.done - 1 if is_train else 0
    step = None if before is None else before + ended
    return Position(
        phase="compute" if is_train else phase,
        since=event.came / _NANO,
        step=step,
        waits=True,
        arrived=step + 1 if is_train and event.steps > 1 and step is not None else None,
    )


def _trained_before(event: FlightEvent) -> int | None:
    if event.step is None:
        return None
    return (event.step - 1 if event.kind == "train" else event.step) or None


def _trained_after(event: FlightEvent) -> int | None:
    if event.kind != "train" or event.step is None:
        return event.step
    return event.step - 1 + (event.done if event.done is not None else event.steps) or None


def _of_this_call(events: Sequence[FlightEvent]) -> list[FlightEvent]:
    """What belongs to the last call, such as `fit`, and has a batch that is known."""
    between = [e.number for e in events if e.kind == "phase" and e.name == "idle" and e.end]
    # What follows the last call is not what came before it.
    last = max(
        (e.number for e in events if e.number not in between and e.name != "idle"), default=0
    )
    begun = max((number for number in between if number < last), default=0)
    return [e for e in events if e.kind != "phase" and e.number > begun and e.signature]


def _failed(flight: Flight, doing: Sequence[FlightEvent]) -> FlightEvent | None:
    """What ended in an error, if nothing came after that."""
    failed = [e for e in doing if e.how == "failed" and e.number == doing[-1].number]
    return failed[0] if failed else None


def _number(event: FlightEvent) -> int:
    return event.number
