"""What happened, as data: events, phases, flight recorder, throughput. No TensorFlow.

`read_records`, `records_path` and `RecordTail` read the event log of a run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.monitoring.event_log import RecordTail as RecordTail
    from phalanx.monitoring.event_log import read_records as read_records
    from phalanx.monitoring.event_log import records_path as records_path

_HOMES = {
    "RecordTail": "phalanx.monitoring.event_log",
    "read_records": "phalanx.monitoring.event_log",
    "records_path": "phalanx.monitoring.event_log",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phalanx.monitoring' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
