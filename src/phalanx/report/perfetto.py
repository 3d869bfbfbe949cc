"""A run's flight recorders as one trace that Perfetto and chrome://tracing open.

The form is Chrome's trace event format
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): a process for
each worker; times and durations in microseconds. All workers of a host share its clock. Between
hosts clocks differ by some milliseconds or more: as an all-reduce ends at the same moment
everywhere, the median of what lies between the ends of the same steps is taken off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from phalanx.errors import ConfigurationError
from phalanx.monitoring.flight_format import Flight, FlightEvent
from phalanx.monitoring.flight_reader import read_flight

_PHASES, _STEPS, _COLLECTIVES = 1, 2, 3
_TRACKS = {_PHASES: "phases", _STEPS: "steps", _COLLECTIVES: "collectives of the host"}
_PHASE_NAMES = {"idle": "outside of training"}
_WHAT = {"train": "step", "test": "validation step", "predict": "prediction step"}


def trace_of(run: Path, attempt: int | None = None) -> dict[str, Any]:
    """The trace of a run.

    Args:
        run: its directory.
        attempt: which start of the worker group; None for all.

    Raises:
        ConfigurationError: no worker has written anything.
    """
    pattern = "*" if attempt is None else str(attempt)
    files = sorted(run.glob(f"attempts/{pattern}/worker-*.flight"))
    flights = [flight for file in files if (flight := read_flight(file)) and flight.events]
    if not flights:
        requested = "" if attempt is None else f" of attempt {attempt}"
        raise ConfigurationError(
            f"No flight recorder{requested} was found in {run}: no worker has started."
        )
    return trace(flights)


def trace(flights: Sequence[Flight]) -> dict[str, Any]:
    """The trace of some flights, which hold at least one event."""
    offsets = clock_offsets(flights)
    zero = min(f.events[0].begin - offsets[f.host] for f in flights)
    events: list[dict[str, Any]] = []
    for flight in flights:
        events += _metadata(flight)
        shift = zero + offsets[flight.host]
        for event in _without_repetition(flight.events):
            events += _shown(event, flight, shift)
    events.sort(key=lambda e: (e.get("ts", -1.0), -e.get("dur", 0.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "started": datetime.fromtimestamp(zero / 1e9, UTC).isoformat(),
            "clocks": {host: f"{offset / 1e6:+.3f} ms" for host, offset in offsets.items()},
        },
    }


def clock_offsets(flights: Sequence[Flight]) -> dict[str, int]:
    """By host, the nanoseconds that its clock is ahead of the first worker's host's."""
    first = min(flights, key=lambda flight: (flight.rank, flight.attempt)).host
    offsets = {first: 0}
    for host in sorted({flight.host for flight in flights} - {first}):
        apart = [
            ends[key] - reference[key]
            for flight in flights
            if flight.host == host
            for ends in [_ends_of_steps(flight)]
            for reference in [_first_ends(flights, first)]
            for key in ends.keys() & reference.keys()
        ]
        offsets[host] = int(median(apart)) if apart else 0
    return offsets


def _first_ends(flights: Sequence[Flight], host: str) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for flight in flights:
        if flight.host == host:
            found = {**_ends_of_steps(flight), **found}
    return found


def _ends_of_steps(flight: Flight) -> dict[tuple[int, int], int]:
    return {
        (flight.attempt, event.step): event.end
        for event in flight.events
        if event.kind == "train" and event.how == "done" and event.step and event.end
    }


def _without_repetition(events: Sequence[FlightEvent]) -> list[FlightEvent]:
    """Without what else is recorded of a phase that has ended: that it continues."""
    phases = [event for event in events if event.kind == "phase"]
    ended = {(event.name, event.begin) for event in phases if not event.is_open}
    return [e for e in events if not (e.is_open and (e.name, e.begin) in ended)]


def _metadata(flight: Flight) -> Iterator[dict[str, Any]]:
    def named(what: str, thread: int, **arguments: Any) -> dict[str, Any]:
        return {"name": what, "ph": "M", "pid": flight.rank, "tid": thread, "args": arguments}

    yield named("process_name", 0, name=f"worker {flight.rank} ({flight.host})")
    yield named("process_sort_index", 0, sort_index=flight.rank)
    for track, name in _TRACKS.items():
        thread = _thread(flight.rank, track)
        yield named("thread_name", thread, name=name)
        yield named("thread_sort_index", thread, sort_index=track)


def _thread(rank: int, track: int) -> int:
    """A number of its own: Perfetto puts a thread first that has its process's, as the main one."""
    return 10 * rank + track


def _shown(event: FlightEvent, flight: Flight, shift: int) -> Iterator[dict[str, Any]]:
    end = event.end or max(flight.ended or 0, flight.alive, event.begin)

    def slice_(name: str, track: int, begin: int, end: int) -> dict[str, Any]:
        return {
            "name": name,
            "cat": event.kind,
            "ph": "X",
            "ts": (begin - shift) / 1000,
            "dur": max(0, end - begin) / 1000,
            "pid": flight.rank,
            "tid": _thread(flight.rank, track),
            "args": _arguments(event, flight),
        }

    if event.kind == "phase":
        yield slice_(_PHASE_NAMES.get(event.name, event.name), _PHASES, event.begin, end)
        return
    if event.kind == "collective":
        yield slice_(event.name, _COLLECTIVES, event.begin, end)
        return
    yield slice_(_format_steps(event), _STEPS, event.begin, end)
    if event.steps == 1 and event.done is not None:
        came = min(max(event.came or end, event.begin), end)
        if came > event.begin:  # What takes no time is shown as an arrow.
            yield slice_("input", _STEPS, event.begin, came)
        if event.came is not None:
            yield slice_("compute and all-reduce", _STEPS, came, end)


def _format_steps(event: FlightEvent) -> str:
    what = _WHAT[event.kind]
    if event.kind != "train" or event.step is None:
        return what
    last = event.step + max(event.steps, 1) - 1
    return f"{what} {event.step}" if last == event.step else f"{what}s {event.step} to {last}"


def _arguments(event: FlightEvent, flight: Flight) -> Mapping[str, Any]:
    known = {
        "attempt": flight.attempt,
        "step": event.step,
        "epoch": event.epoch,
        "bytes": event.bytes,
        "batch": event.batch or None,
        "batches that came": event.done if event.steps > 1 else None,
        "ended": None if event.how == "done" else event.how,
    }
    return {name: value for name, value in known.items() if value is not None}
