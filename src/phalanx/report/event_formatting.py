"""Notable events of a run, and how pages describe them: a line here for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.monitoring.events import (
    CheckpointEvent,
    CheckpointFailed,
    EarlyStop,
    Event,
    PreemptionEvent,
    Resize,
    Restart,
    Stall,
    WorkerReplaced,
)
from phalanx.report.formatting import format_bytes, format_duration


@dataclass(frozen=True, kw_only=True)
class EventStyle:
    """How one kind of event is shown.

    Attributes:
        name: one word or two for it.
        row: its row in the time line.
        symbol: its mark there, as plotly names it.
        colour: of the mark.
        say: what happened, in words.
    """

    name: str
    row: str
    symbol: str
    colour: str
    say: Callable[[Any], str]


def format_checkpoint(checkpoint: CheckpointEvent) -> str:
    """What was saved, where, how large and how long it took."""
    parts = [f"step {checkpoint.step}"]
    parts += [checkpoint.path] if checkpoint.path else []
    parts += [format_bytes(checkpoint.bytes)] if checkpoint.bytes is not None else []
    parts += [format_duration(checkpoint.seconds)] if checkpoint.seconds is not None else []
    return ", ".join(parts)


def format_checkpoint_failed(failed: CheckpointFailed) -> str:
    """What storage said."""
    return f"step {failed.step}: {failed.error or 'unknown error'}"


def format_restart(restart: Restart) -> str:
    """Why the worker group was restarted."""
    who = "" if restart.rank is None else f"worker {restart.rank}: "
    return f"attempt {restart.attempt}, after {who}{restart.cause or 'unknown cause'}"


def format_resize(resize: Resize) -> str:
    """How many workers continue, and why no more."""
    count = len(resize.workers)
    numbers = ", ".join(map(str, resize.workers))
    plural = "s" * (count != 1)
    return f"{count} worker{plural} ({numbers}): {resize.cause or 'unknown cause'}"


def format_replaced(replaced: WorkerReplaced) -> str:
    """Who was lost, and why."""
    return f"worker {replaced.rank}: {replaced.cause or 'unknown cause'}"


def format_preemption(preemption: PreemptionEvent) -> str:
    """Which signal came."""
    return f"{preemption.signal or 'a signal'}: training saves and stops"


def format_stall(stall: Stall) -> str:
    """Who was waited for."""
    return stall.message


def format_stop(stop: EarlyStop) -> str:
    """Why training was stopped early."""
    return f"at step {stop.step}: {stop.reason or 'unknown reason'}"


_SAVED, _LOST, _ENDED, _WARNED = "#4477aa", "#cc3311", "#aa3377", "#ee7733"


def _happening(
    name: str, row: str, symbol: str, colour: str, say: Callable[[Any], str]
) -> EventStyle:
    return EventStyle(name=name, row=row, symbol=symbol, colour=colour, say=say)


EVENT_STYLES: dict[type[Event], EventStyle] = {
    CheckpointEvent: _happening("checkpoint", "checkpoints", "diamond", _SAVED, format_checkpoint),
    CheckpointFailed: _happening(
        "checkpoint failed", "not saved", "diamond-x", _LOST, format_checkpoint_failed
    ),
    Restart: _happening("restart", "restarts", "x", _LOST, format_restart),
    Resize: _happening("other workers", "other workers", "diamond-wide", _LOST, format_resize),
    WorkerReplaced: _happening("worker replaced", "replaced", "cross", _LOST, format_replaced),
    Stall: _happening("stall", "stalls", "hourglass", _WARNED, format_stall),
    PreemptionEvent: _happening(
        "preemption", "preemptions", "triangle-down", _ENDED, format_preemption
    ),
    EarlyStop: _happening("stopped", "stops", "square", _ENDED, format_stop),
}
"""By kind of event; the order is that of the time line's rows."""


def happened(event: Event) -> tuple[str, str]:
    """What kind of thing it was, and what, in words."""
    kind = EVENT_STYLES[type(event)]
    return kind.name, kind.say(event)
