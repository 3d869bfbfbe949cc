"""The check that this process does before each collective, where it was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import DisagreementError, PeerGoneError
from phalanx.worker.alike.brought import Brought, Tensor
from phalanx.worker.alike.meeting import Guest, Host, Meeting
from phalanx.worker.pulse import pulse

PATIENCE = 300.0


class Check:
    """Compares what this worker brings with what the others do."""

    def __init__(self, meeting: Meeting, *, workers: int) -> None:
        """Meet the `workers` in `meeting`."""
        self.workers = workers
        self._meeting = meeting
        self._thread = threading.local()

    @property
    def is_under_way(self) -> bool:
        """Whether what this thread is about to do is part of what was compared."""
        return bool(getattr(self._thread, "covered", False))

    def compare(self, what: str, tensors: Sequence[Tensor], *, in_step: bool) -> None:
        """Return when all workers bring the same.

        Args:
            what: what is to be brought together.
            tensors: what this worker brings.
            in_step: whether a step is under way; else one has ended.

        Raises:
            DisagreementError: a worker brings something else, or does not come.
            PeerGoneError: a worker has ended.
        """
        step = (pulse.beat().step or 0) + in_step
        answer = self._meeting.meet(Brought(step=step, what=what, tensors=tuple(tensors)))
        if answer.is_gone:
            raise PeerGoneError(f"Cannot go on without a worker: {answer.said}.")
        if answer.said:
            raise DisagreementError(
                f"Workers do not bring the same to a collective: {answer.said}. Every worker must "
                "take the same steps on the same model, with data of the same shapes and dtypes."
            )

    @contextmanager
    def covered(self) -> Iterator[None]:
        """What this thread does in the block has been compared."""
        before, self._thread.covered = self.is_under_way, True
        try:
            yield
        finally:
            self._thread.covered = before


_current: list[Check] = []


def begin(spec: WorkerSpec) -> None:
    """Have this process compare from now on, if its run was asked to.

    Raises:
        OSError: the workers cannot meet.
    """
    if not spec.meeting or spec.serves:
        return
    host, _, port = spec.meeting.rpartition(":")
    patience = None if spec.interactive else PATIENCE
    address = (host, int(port))
    meeting: Meeting = (
        Host(address, spec.world_size, patience=patience)
        if spec.is_chief
        else Guest(address, spec.rank, patience=patience)
    )
    _current[:] = [Check(meeting, workers=spec.world_size)]


def current_check() -> Check | None:
    """This process's check; None where it does none."""
    return _current[0] if _current else None


def before_collective(
    what: str, tensors: Callable[[], Sequence[Tensor]] = tuple, *, in_step: bool = False
) -> None:
    """Compare what this worker brings, if it was asked to; see `Check.compare`."""
    check = current_check()
    if check is not None and not check.is_under_way:
        check.compare(what, tensors(), in_step=in_step)
