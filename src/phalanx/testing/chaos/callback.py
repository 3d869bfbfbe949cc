"""The faults of a plan as a callback of `fit`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from phalanx.callbacks.callback import Callback
from phalanx.keras_compat.model_access import steps_trained
from phalanx.testing.chaos.fault_types import Plan
from phalanx.testing.chaos.injector import Injector, Marks, injector_here, marks_of_run
from phalanx.testing.chaos.storage_faults import FaultyDisk, arm


class Chaos(Callback):
    """Lets the faults of a plan happen while `fit` trains; give the same plan to all workers.

    A worker's fault happens where this callback's turn comes after the step: what is listed
    before it has seen the step, what is listed after it has not. Storage faults begin with the
    call of `fit` and last as long as the process.
    """

    logs_every_n_steps = 0

    def __init__(self, plan: Plan, directory: str | os.PathLike[str] | None = None) -> None:
        """Get ready.

        Args:
            plan: the faults.
            directory: where to remember what has happened; None takes the run's directory
                under `phalanx run`, and else remembers for this process only.
        """
        super().__init__()
        self._plan = plan
        self._marks = (
            marks_of_run(os.environ) if directory is None else Marks(Path(directory).absolute())
        )
        self._injector: Injector | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Take the worker's place; the storage's faults begin."""
        self._injector = injector_here(self._plan, self._marks, self.cluster.rank)
        arm(FaultyDisk(self._plan, self.cluster.rank, self._marks))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See where training is: by now all that restores has restored."""
        self._report_step()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Let happen what is due."""
        self._report_step()

    def _report_step(self) -> None:
        if self._injector is not None:
            self._injector.reached(steps_trained(self.model))
