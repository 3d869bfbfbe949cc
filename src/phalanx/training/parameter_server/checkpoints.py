"""The checkpoints of a `fit` whose workers go each at its own pace: saved while all stand still."""

from __future__ import annotations

from typing import Any

from phalanx.callbacks.checkpoint import checkpoint_among
from phalanx.training.capture import Moment
from phalanx.training.checkpointing import Checkpointing
from phalanx.training.no_checkpoints import NoCheckpoints
from phalanx.training.parameter_server.capture import ServerCapture
from phalanx.training.prepare import Stage
from phalanx.worker import preemption


class ServerCheckpointing(Checkpointing):
    """Saves and brings back one `fit`, from the chief, which writes all.

    Workers have steps given ahead, so the chief says beforehand how many more there may be.
    """

    def room(self, step: int) -> int | None:
        """How many steps may be given before all are to stand still, `step` of them done.

        None for any number; 0 where a checkpoint is due, or a signal asks to stop.
        """
        schedule = self._schedule
        due = schedule.is_due_by_the_clock() or schedule.is_due_after_step(step)
        if due or preemption.requested():
            return 0
        every = self._options.every
        return int(every.every) - step % int(every.every) if every.unit == "steps" else None

    def trained(self, steps: int) -> None:
        """So many more steps are done, and their hooks have run."""
        self._step += steps

    def save_now(self, epoch: int, batch: int) -> None:
        """Save in the midst of an epoch; no step is under way.

        Raises:
            SystemExit: this process is to go, and has saved.
        """
        self._save(Moment(step=self._step, epoch=epoch, batch=batch))
        if preemption.requested():
            self._stop()


def checkpoints_of(
    stage: Stage, callbacks: list[Any], capture: ServerCapture
) -> ServerCheckpointing | NoCheckpoints:
    """What keeps the checkpoints of a `fit` with these callbacks."""
    callback = checkpoint_among(callbacks)
    if callback is None:
        return NoCheckpoints()
    return ServerCheckpointing(stage, callback, capture, check=lambda: None)
