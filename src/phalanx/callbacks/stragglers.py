"""Which worker holds up the others, since when, and why."""

from __future__ import annotations

import logging
import os

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.checking import check_count, check_seconds
from phalanx.errors import OptionError
from phalanx.observe.stragglers import Straggler, StragglerDetector
from phalanx.observe.throughput import ThroughputNumbers
from phalanx.worker.journal import own_journal

_log = logging.getLogger(__name__)

_CAUSES = {
    "input": "it waits for its data",
    "compute": "its step itself takes longer",
    "callbacks": "its callbacks take longer",
}


class Stragglers(Callback):
    """Finds workers that are slower than the others, who must wait for them at every step.

    Each worker's own time in a step (input, computing and callbacks, without the wait in the
    all-reduce) is compared with the median of the others'. Who is slow in several windows in
    a row is logged as a warning by the chief, with the part in which it loses most, and
    again when it keeps up. Under `phalanx run` both are `straggler` records too.

    With one worker there is nothing to compare, and nothing happens. Under parameter servers
    nobody waits for anybody; what is compared is the time of a worker's own steps.

    Attributes:
        stragglers: those that are slow now; the same on every worker.
    """

    reads_logs_every = 0
    wants_workers = True

    def __init__(
        self, *, factor: float = 1.5, windows: int = 2, every_seconds: float = 10.0
    ) -> None:
        """Choose what is slow.

        Args:
            factor: how many times the median of the others' own time.
            windows: in how many windows in a row.
            every_seconds: seconds of training in a window, about.

        Raises:
            OptionError: `factor` is not above 1, or a number is not positive.
        """
        super().__init__()
        check_seconds("every_seconds", every_seconds)
        check_count("windows", windows)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor > 1.0:
            raise OptionError(f"factor must be a number above 1; found {factor!r}.")
        self.every_seconds = every_seconds
        self._detector = StragglerDetector(factor=factor, windows=windows)

    @property
    def stragglers(self) -> list[Straggler]:
        """The workers that are slow now, by rank."""
        return self._detector.stragglers

    def take_throughput(self, numbers: ThroughputNumbers, *, is_chief: bool) -> None:
        """Compare the workers in one window; `fit` calls it."""
        first = numbers.step - numbers.steps + 1
        news = self._detector.take(numbers.step, first, numbers.workers)
        for straggler in news if is_chief else []:
            _log.warning("%s", describe(straggler, in_step=not self.cluster.servants))
            if (journal := own_journal(os.environ)) is not None:
                journal.write("straggler", **vars(straggler))


def describe(straggler: Straggler, *, in_step: bool = True) -> str:
    """One line for people; `in_step` says whether workers wait for each other."""
    if straggler.gone:
        return (
            f"step {straggler.step}: worker {straggler.rank} keeps up again (slow since step "
            f"{straggler.since_step})"
        )
    return (
        f"step {straggler.step}: worker {straggler.rank} is slow since step "
        f"{straggler.since_step}: its own time in a step is {straggler.factor:.1f} times the "
        f"others', as {_CAUSES[straggler.cause]}.{' The others wait for it.' if in_step else ''}"
    )
