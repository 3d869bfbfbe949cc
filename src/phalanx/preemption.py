"""Preemption in a custom training loop: `phalanx.preemption`.

    with phalanx.preemption.guard():
        while training:
            step()
            if phalanx.preemption.is_requested(): ...

`fit` with a `phalanx.callbacks.Checkpoint` needs none of this.
"""

from phalanx.cluster.exit_codes import RESUME_EXIT_CODE
from phalanx.worker.preemption import clear, guard, is_requested

__all__ = ["RESUME_EXIT_CODE", "clear", "guard", "is_requested"]
