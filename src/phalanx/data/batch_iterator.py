"""Walk a source epoch by epoch, in chunks of `steps_per_execution` steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from phalanx.data.batches import BatchSource
from phalanx.data.dataset_identity import DatasetIdentity, translate
from phalanx.data.iterator_position import DataPosition
from phalanx.data.iterator_state import read_iterator
from phalanx.data.shuffles import Shuffles
from phalanx.monitoring.phase_tracker import phase_tracker


class BatchIterator:
    """The position of training in its data, and how many steps come next.

    Without `steps_per_epoch` an epoch is one pass over the source. With it, a pass goes
    on across epochs, as in Keras; one that ends in the middle of an epoch ends the epoch.
    """

    def __init__(
        self, source: BatchSource, *, steps_per_epoch: int | None, steps_per_execution: int
    ) -> None:
        self.source = source
        self._steps_per_epoch = steps_per_epoch
        self.steps_per_execution = steps_per_execution
        """How many steps the next execution has at the most; the same on all workers."""
        self._iterator: Any = None
        self._position = 0
        self._learned: int | None = None
        self._ran_out = False
        self._steps_short = 0
        self._taken = 0
        self._left_out = 0
        self._passes = 0
        self._unread = 0
        self._seeds_before: tuple[int | None, ...] | None = None
        self._first_step = 0
        self.limit: Callable[[], int | None] = lambda: None
        """Asked before each chunk: how many steps it may have at the most."""
        self.ready: Callable[[int, Any], int] | None = None
        """Asked with the steps taken of this pass, and its iterator: for how many more there
        is data."""

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, None while unknown."""
        return self._steps_per_epoch or self.source.num_batches or self._learned

    def start(self, epoch: int) -> None:
        """Begin at `epoch` (from 0), with the first batch of a pass, as Keras does.

        Keras calls the data's `on_epoch_end` here too (`EpochIterator.reset`), at which a
        PyDataset may shuffle.
        """
        self.source.on_epoch_end()
        position = epoch * (self.steps or 0)
        self._position = position - position % (self.source.num_batches or 1)
        self._iterator = None
        self._passes = self._unread = 0

    def position(self, batch: int, *, since: int) -> DataPosition:
        """The position of training.

        Args:
            batch: batches of this epoch that are trained.
            since: of these, how many of the execution under way; 0 between two.
        """
        within = self._iterator is not None and not self._at_end_of_pass(since)
        random = getattr(self.source, "random", None)  # of a source that draws its order from it
        return DataPosition(
            batch=batch,
            trained=self._position + since,
            passes=self._passes,
            unread=self._unread,
            taken=self._left_out + self._taken + since if within else None,
            learned=self._learned,
            seed=self.source.seed,
            random=random if within else None,
            division=self.division(self._position + since),
            seeds_before=self._seeds_before if within else None,
            seeds_drawn=self._seeds_drawn(within_pass=within),
        )

    def _seeds_drawn(self, *, within_pass: bool) -> tuple[int | None, ...] | None:
        shuffles: Shuffles | None = getattr(self.source, "shuffles", None)
        return None if shuffles is None else shuffles.seeds_drawn(within_pass=within_pass)

    def division(self, trained: int) -> str | None:
        """See `DataPosition.division`; after so many batches."""
        division_at = getattr(self.source, "division_at", None)
        return None if division_at is None else division_at(trained)

    @property
    def identity(self) -> DatasetIdentity:
        """Which data it is, for a checkpoint."""
        return DatasetIdentity.of(self.source)

    def translate(self, position: DataPosition, saved: DatasetIdentity) -> DataPosition:
        """A position in the data `saved`, in this data."""
        return translate(position, saved, self.identity, steps_per_epoch=self._steps_per_epoch)

    def rows(self, since: int) -> Any:
        """The samples of the batch that comes after `since` steps of the execution under way.

        Returns:
            Their numbers in the data, in the order of the batch; None where they are unknown.
        """
        rows_at = getattr(self.source, "rows_at", None)
        return None if rows_at is None else rows_at(self._position + since)

    def iterator_state(self, position: DataPosition) -> dict[str, Any] | None:
        """What the iterator holds; None where the position is enough, or it is unknown."""
        if position.taken is None or not self.source.has_state:
            return None
        return read_iterator(self._iterator)

    def restore(self, position: DataPosition, state: Mapping[str, Any] | None) -> None:
        """Continue where `position` was taken; the next epoch begins in the middle.

        Args:
            position: from `position`.
            state: from `iterator_state`, of the same replicas; None to read the data again
                up to there and leave it out.
        """
        self._position = position.trained
        self._learned = position.learned
        self._first_step = position.batch
        self._passes = position.passes
        self._unread = position.unread
        self._seeds_before = position.seeds_before
        self.source.seed = position.seed
        self._iterator = None
        if not self.source.endless:
            self._taken, self._left_out = 0, position.taken or 0
            self._iterator = self.source.reopen(position, state)

    def _at_end_of_pass(self, since: int) -> bool:
        batches = self.source.num_batches
        return batches is not None and batches > 0 and (self._position + since) % batches == 0

    def took(self, steps: int) -> None:
        """Note how many steps of the execution under way are done, before anything can end it.

        A source with a method `took` gets the batches taken of its pass; it is needed only where
        what was not taken is not made again.
        """
        took = getattr(self.source, "took", None)
        if took is not None:
            took(self._left_out + self._taken + steps)

    def reached_end(self, *, steps_done: int) -> None:
        """Note that the data ended after `steps_done` steps of the chunk just given."""
        self._ran_out = True
        self._steps_short = steps_done

    def samples(self, steps: int) -> int | None:
        """Samples in the first `steps` batches of the chunk under way; None where unknown."""
        size, batches = self.source.batch_size, self.source.num_batches
        if size is None:
            return None
        if batches is None or self.source.num_samples is None:
            return size * steps
        ends = (self._position + steps) // batches - self._position // batches
        return size * steps - ends * (size * batches - self.source.num_samples)

    def epoch(self) -> Iterator[tuple[int, int, Any]]:
        """(first step, steps to run, iterator) for each execution of one epoch."""
        self._ran_out = False
        step, self._first_step = self._first_step, 0
        if not step or step != self.steps:  # a resumed epoch may be at its end
            self.source.on_epoch_begin()
        while (size := self._next_size(step)) > 0:
            self._open()
            yield step, size, self._iterator
            done = self._steps_short if self._ran_out else size
            step += done
            self._position += done
            self._taken += done
        self._finish(step)
        self.source.on_epoch_end()

    def _next_size(self, step: int) -> int:
        if self._ran_out or self.source.num_batches == 0:
            return 0
        sizes = [n for n in (self.steps_per_execution, self.limit()) if n is not None]
        if self._steps_per_epoch is not None:
            sizes.append(self._steps_per_epoch - step)
        if self.source.num_batches is not None:
            offset = self._position % self.source.num_batches
            # A pass that has just ended is full for this epoch and empty for the next.
            sizes.append(self.source.num_batches - (offset or (step and self.source.num_batches)))
        size = min(sizes)
        if size > 0 and self.ready is not None:
            self._open()
            size = min(size, self.ready(self._taken, self._iterator))
            if size == 0:
                self.reached_end(steps_done=0)
        return size

    def _open(self) -> None:
        if self._iterator is None:
            with phase_tracker.during("input", instead_of="compute"):
                self._seeds_before = self._seeds_drawn(within_pass=False)
                self._iterator = self.source.open(self._position)
            self._passes += 1
            self._taken = self._left_out = 0

    def _finish(self, step: int) -> None:
        if self._steps_per_epoch is not None and step < self._steps_per_epoch:
            warnings.warn(
                f"The data ended after {step} of the {self._steps_per_epoch} steps_per_epoch; the "
                "epoch ends here. Use .repeat(), or fewer steps_per_epoch.",
                stacklevel=2,
            )
        pass_ended = self.source.num_batches and self._position % self.source.num_batches == 0
        if self._steps_per_epoch is None and step and step == self.source.num_batches:
            self.source.open_unread()
            self._unread += 1
        if self._ran_out or pass_ended or self._steps_per_epoch is None:
            if not self.source.endless:
                self._iterator = None
            if self._ran_out and self._steps_per_epoch is None:
                self._learned = step
