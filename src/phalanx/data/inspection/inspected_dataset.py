"""A dataset that is being looked at, and for which replicas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from phalanx.keras_compat.dataset_graph import Transformation

BATCHES = ("Batch", "ParallelBatch", "PaddedBatch", "RaggedBatch")


@dataclass(frozen=True, kw_only=True)
class InspectedDataset:
    """A pipeline, and what surrounds it.

    Attributes:
        last: its last step.
        workers: processes that will read it.
        replicas: replicas in all of these.
        batches: elements of one pass; -1 forever, None where unknown.
        batch_size: the first axis of an element, None where it may differ.
        deterministic: what the dataset's options say of the order of parallel steps.
    """

    last: Transformation
    workers: int
    replicas: int
    batches: int | None
    batch_size: int | None
    deterministic: bool

    @cached_property
    def steps(self) -> tuple[Transformation, ...]:
        """All steps, each after those that it reads."""
        return tuple(self.last.walk())

    def of(self, *kinds: str) -> list[Transformation]:
        """The steps of these kinds."""
        return [step for step in self.steps if step.kind in kinds]

    @property
    def batch_steps(self) -> list[Transformation]:
        """The steps that make batches."""
        return self.of(*BATCHES)

    def is_disordered(self, step: Transformation) -> bool:
        """Whether a step may give its elements in the order in which they are ready."""
        if not step.parallel or step.deterministic == "true":
            return False
        return step.deterministic == "false" or not self.deterministic


def before(step: Transformation, *kinds: str) -> list[Transformation]:
    """The steps of these kinds that `step` reads from."""
    return [one for one in step.walk() if one is not step and one.kind in kinds]
