"""Preemption: the run is asked to go, its training saves and stops, and it can continue later.

The launcher passes SIGTERM and SIGUSR1 (which Slurm sends some time before the end) on to the
workers. Training agrees on a step, saves, and ends every worker with `RESUME_EXIT_CODE`.
"""

from __future__ import annotations

import signal
from pathlib import Path

from phalanx.monitoring.event_log import last_record, records_path

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What asks training to save and stop."""


def stopped_at(run_dir: Path) -> int | None:
    """The step at which the chief stopped; None where that is not recorded."""
    end = last_record(records_path(run_dir, 0), "worker_end")
    step = None if end is None else end.get("step")
    return step if isinstance(step, int) else None
