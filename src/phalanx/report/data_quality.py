"""What a page about a run cannot show, and why: what was not recorded, what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.monitoring.events import (
    CheckpointEvent,
    EpochMetrics,
    FitStart,
    Gradients,
    HeartbeatEvent,
    ThroughputEvent,
    TrainMetrics,
)
from phalanx.report.event_reader import CorruptLines
from phalanx.report.formatting import format_duration
from phalanx.report.run_data import RunData
from phalanx.report.series import VALIDATION

_SHOWN = 5


def damages(data: RunData) -> list[str]:
    """What could not be read, a sentence each."""
    found = [data.file.problem] if data.file.problem else []
    return found + [format_damage(each) for each in data.damage]


def format_damage(damage: CorruptLines) -> str:
    """What could not be read of one file; all the rest of it was."""
    parts = []
    if damage.damaged:
        parts.append(f"{_lines(damage.damaged)} damaged and left out")
    if damage.newer:
        parts.append(f"{_lines(damage.newer)} from a later version of Phalanx and left out")
    if damage.invalid:
        plural = "s lack" if damage.invalid > 1 else " lacks"
        parts.append(f"{damage.invalid} record{plural} what it needs: left out")
    if damage.unfinished:
        parts.append("the last line is incomplete")
    if damage.error:
        parts.append(f"it cannot be read: {damage.error}")
    return f"{damage.file}: {'; '.join(parts)}."


def _lines(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"line{'s' * (len(numbers) > 1)} {shown}{more} {'are' if len(numbers) > 1 else 'is'}"


def gaps(data: RunData, now: float) -> list[str]:
    """What was not recorded, a sentence each.

    Args:
        data: the run.
        now: seconds since the epoch.
    """
    if not data.events:
        return ["Nothing was recorded: there is no file of records that could be read."]
    return [text for is_missing, text in _gaps(data, now) if is_missing]


def _gaps(data: RunData, now: float) -> Iterable[tuple[bool, str]]:
    silence = format_duration(max(0.0, now - data.last))
    epochs = data.of(EpochMetrics)
    validated = any(name.startswith(VALIDATION) for each in epochs for name in each.logs)
    yield (
        data.end is None,
        f"The run has no end yet: it still runs, or its launcher was killed. The last sign of "
        f"life came {silence} before this page was made.",
    )
    yield (not data.of(FitStart), "No call of fit was recorded.")
    yield (not data.of(TrainMetrics), "No metrics were read between the ends of epochs.")
    yield (not epochs, "No epoch ended.")
    yield (bool(epochs) and not validated, "There was no validation.")
    yield (not data.of(ThroughputEvent), "No throughput was recorded.")
    yield (
        not data.of(HeartbeatEvent),
        "No heartbeats were recorded, so nothing is known of memory.",
    )
    yield (
        not data.of(Gradients),
        "No gradients were recorded: give fit callbacks=[phalanx.callbacks.GradientLogger()].",
    )
    yield (not data.of(CheckpointEvent), "No checkpoint was saved.")
    yield (
        any(point.learning_rate is None for point in epochs),
        "For some epochs no learning rate was recorded.",
    )
    missing = (data.workers or 0) - len(data.ranks)
    yield (missing > 0, f"{missing} of {data.workers} workers recorded nothing.")
