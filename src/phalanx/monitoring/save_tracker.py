"""What a worker saves, seen: the phase it is in meanwhile, and the record of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.cluster.spec import WorkerSpec
from phalanx.monitoring.event_log import event_log_of
from phalanx.monitoring.events import CheckpointEvent
from phalanx.monitoring.phase_tracker import PhaseTracker, phase_tracker


@contextmanager
def saving(
    path: str,
    *,
    own_pulse: PhaseTracker = phase_tracker,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Be in the phase "checkpoint" for the length of a block that saves to `path`.

    Under `phalanx run` the chief writes a `checkpoint` record once it is saved.
    """
    started = clock()
    with own_pulse.during("checkpoint"):
        yield
    seconds = clock() - started
    spec = WorkerSpec.from_environment(os.environ)
    if spec is None or spec.run_dir is None or not spec.is_chief:
        return
    beat = own_pulse.beat()
    saved = CheckpointEvent(
        step=beat.step or 0,
        epoch=beat.epoch,
        path=path,
        seconds=seconds,
        bytes=_size(Path(path)),
    )
    event_log_of(spec.run_dir, spec.rank).append(saved)


def _size(path: Path) -> int | None:
    """Bytes on disk, of everything below a directory; None where that is unknown."""
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    except OSError:
        return None
