"""Who reads what of a stream's files: each worker its own, or all workers everything.

By file: the samples of one pass, in the files' order of that pass, are cut into one stretch for
each worker, as long as the rows that it takes of all batches. So every worker ends at the same
step, nothing is read twice, and files need not be of one length.

By record: every worker reads all records in one order and takes its rows of each batch; the others
it neither parses nor maps. The batches are then the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.distributed.topology import ReplicaTopology, rows_of


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How many samples batches hold.

    Attributes:
        samples: in the files.
        size: of a whole batch.
        drop_remainder: whether a last, smaller batch is left out.
    """

    samples: int
    size: int
    drop_remainder: bool

    @property
    def whole(self) -> int:
        """Whole batches in a pass."""
        return self.samples // self.size

    @property
    def last(self) -> int:
        """Samples in a last, smaller batch; 0 where there is none."""
        return 0 if self.drop_remainder else self.samples % self.size

    @property
    def number(self) -> int:
        """Batches in a pass."""
        return self.whole + (self.last > 0)

    @property
    def used(self) -> int:
        """Samples in all batches of a pass."""
        return self.whole * self.size + self.last

    @property
    def smallest(self) -> int:
        """Samples in the smallest batch."""
        return self.last or self.size


@dataclass(frozen=True, kw_only=True)
class SampleRange:
    """The samples `begin` to `end` of a pass, in the order of its files."""

    begin: int
    end: int


def shards_by_file(
    files: int, batches: BatchPlan, topology: ReplicaTopology, *, shuffle: bool
) -> bool:
    """Whether each worker reads files of its own: where there is one at least for each.

    Unshuffled samples keep the order of the files, which only reading by record gives.
    """
    several = topology.workers > 1 and files >= topology.workers
    return several and shuffle and batches.size >= topology.total and batches.whole > 0


def range_for_worker(
    batches: BatchPlan, topology: ReplicaTopology, *, by_file: bool
) -> SampleRange:
    """What the worker at `topology` reads of each pass."""
    if not by_file:
        return SampleRange(begin=0, end=batches.used)
    begin = (
        batches.whole * own_rows(topology, batches.size)[0] + own_rows(topology, batches.last)[0]
    )
    length = (
        batches.whole * own_rows(topology, batches.size)[1] + own_rows(topology, batches.last)[1]
    )
    return SampleRange(begin=begin, end=begin + length)


def own_rows(topology: ReplicaTopology, total: int) -> tuple[int, int]:
    """The first of a batch's rows that this worker takes, and how many it takes."""
    first = rows_of(topology.first, topology.total, total)[0]
    counts = [rows_of(topology.first + i, topology.total, total)[1] for i in range(topology.local)]
    return first, sum(counts)


def segments(
    files: Sequence[str], counts: Sequence[int], order: tf.Tensor, stretch: SampleRange
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The parts of files in a stretch; traced.

    Args:
        files: all files.
        counts: samples in each.
        order: the files' order in this pass, int64.
        stretch: which samples of the pass.

    Returns:
        For each part the file's name, the number of its first sample among those of all files,
        how many samples to leave out, and how many to take.
    """
    numbers = tf.gather(tf.cumsum(tf.constant(counts, tf.int64), exclusive=True), order)
    sizes = tf.gather(tf.constant(counts, tf.int64), order)
    begins = tf.cumsum(sizes, exclusive=True)
    skip = tf.clip_by_value(stretch.begin - begins, 0, sizes)
    take = tf.clip_by_value(stretch.end - begins, 0, sizes) - skip
    here = take > 0
    names = tf.gather(tf.constant(list(files)), order)
    return names[here], numbers[here], skip[here], take[here]
