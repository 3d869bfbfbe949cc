"""Events and quantities in words that a person reads at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from phalanx.monitoring.events import EpochMetrics, Event, FitStart

E = TypeVar("E", bound=Event)

MISSING = "-"


def formatted(events: Iterable[E], say: Callable[[E], str]) -> list[tuple[Event, str]]:
    """Each event with its words."""
    return [(event, say(event)) for event in events]


def format_fit(start: FitStart) -> str:
    """What a call of `fit` trained."""
    parts = [start.model or "a model"]
    if start.parameters is not None:
        parts.append(f"{start.parameters:,} parameters")
    parts += [start.optimizer] if start.optimizer else []
    if start.epochs is not None:
        parts.append(f"{start.epochs} epoch{'s' * (start.epochs != 1)}")
    parts += [f"{start.steps} steps each"] if start.steps else []
    return ", ".join(parts)


def format_epoch(epoch: EpochMetrics) -> str:
    """An epoch that ended, and what it came to."""
    logs = ", ".join(f"{name} {format_number(value)}" for name, value in epoch.logs.items())
    return f"epoch {epoch.epoch} ended at step {epoch.step}: {logs}"


def format_number(value: float | None) -> str:
    """A number with as many digits as one reads: 0.0712, 12,300, nan."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.3e}"


def format_bytes(count: float | None) -> str:
    """Bytes: 812 MB, 1.4 GB."""
    if count is None or not math.isfinite(count):
        return MISSING
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def format_duration(seconds: float | None) -> str:
    """A time: 310 ms, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if abs(seconds) < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if abs(seconds) < 59.5:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole / 86400:.1f} days"


def format_time(seconds: float) -> str:
    """A time since the epoch as this machine's clock shows it."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since the epoch"  # No date: a clock was off, or a line damaged.


def count(value: int | None) -> str:
    """A whole number: 12,300."""
    return MISSING if value is None else f"{value:,}"


def percent(share: float | None) -> str:
    """A share: 46%."""
    return MISSING if share is None or not math.isfinite(share) else f"{share:.0%}"


def parts(shares: Mapping[str, float]) -> str:
    """Shares of a whole: input 14%, compute 86%."""
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())


def goodput_line(goodput: float, losses: Sequence[tuple[str, float]], most: int = 4) -> str:
    """Goodput 87%; starting 9%, saving 3%, all else 1%: the largest losses by name."""
    shown = [(name, share) for name, share in losses[:most] if share >= 0.005]
    rest = sum(share for _, share in losses[len(shown) :])
    named = [f"{name} {percent(share)}" for name, share in shown]
    named += [f"all else {percent(rest)}"] if rest >= 0.005 else []
    return f"goodput {percent(goodput)}" + (f"; {', '.join(named)}" if named else "")


def difference(value: float | None, other: float | None) -> str:
    """How far a value is from another: +0.012."""
    if value is None or other is None:
        return MISSING
    apart = value - other
    return format_number(apart) if not apart > 0 else f"+{format_number(apart)}"
