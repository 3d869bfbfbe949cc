"""Walk a source epoch by epoch, in chunks of `steps_per_execution` steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from phalanx.data.batches import BatchSource


class BatchStream:
    """Where training stands in its data, and how many steps come next.

    Without `steps_per_epoch` an epoch is one pass over the source. With it, a pass goes
    on across epochs, as in Keras; one that ends in the middle of an epoch ends the epoch.
    """

    def __init__(
        self, source: BatchSource, *, steps_per_epoch: int | None, steps_per_execution: int
    ) -> None:
        self.source = source
        self._asked = steps_per_epoch
        self._chunk = steps_per_execution
        self._iterator: Any = None
        self._position = 0
        self._learned: int | None = None
        self._ran_out = False
        self._steps_short = 0
        self.limit: Callable[[], int | None] = lambda: None
        """Asked before each chunk: how many steps it may have at the most."""

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, None while nobody can know."""
        return self._asked or self.source.num_batches or self._learned

    def start(self, epoch: int) -> None:
        """Begin at `epoch` (from 0), as if the epochs before had been trained."""
        self._position = epoch * (self.steps or 0)
        self._iterator = None

    def ran_out(self, *, steps_done: int) -> None:
        """Tell that the data ended after `steps_done` steps of the chunk just given."""
        self._ran_out = True
        self._steps_short = steps_done

    def epoch(self) -> Iterator[tuple[int, int, Any]]:
        """(first step, steps to run, iterator) for each execution of one epoch."""
        self.source.on_epoch_begin()
        self._ran_out = False
        step = 0
        while (size := self._next_size(step)) > 0:
            if self._iterator is None:
                self._iterator = self.source.open(self._position)
            yield step, size, self._iterator
            done = self._steps_short if self._ran_out else size
            step += done
            self._position += done
        self._finish(step)
        self.source.on_epoch_end()

    def _next_size(self, step: int) -> int:
        if self._ran_out or self.source.num_batches == 0:
            return 0
        sizes = [n for n in (self._chunk, self.limit()) if n is not None]
        if self._asked is not None:
            sizes.append(self._asked - step)
        if self.source.num_batches is not None:
            begun = self._position % self.source.num_batches
            # A pass that has just ended is full for this epoch and empty for the next.
            sizes.append(self.source.num_batches - (begun or (step and self.source.num_batches)))
        return min(sizes)

    def _finish(self, step: int) -> None:
        if self._asked is not None and step < self._asked:
            warnings.warn(
                f"The data ended after {step} of the {self._asked} steps_per_epoch; the epoch "
                "ends here. Use .repeat(), or fewer steps_per_epoch.",
                stacklevel=2,
            )
        pass_ended = self.source.num_batches and self._position % self.source.num_batches == 0
        if self._ran_out or pass_ended or self._asked is None:
            if not self.source.endless:
                self._iterator = None
            if self._ran_out and self._asked is None:
                self._learned = step
