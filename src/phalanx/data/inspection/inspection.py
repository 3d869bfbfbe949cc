"""What was found out about a dataset, as values and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Weight = Literal["wrong", "slow", "note"]
_ORDER: tuple[Weight, ...] = ("wrong", "slow", "note")


@dataclass(frozen=True, kw_only=True)
class DatasetFinding:
    """One thing in a dataset's pipeline that somebody should know.

    Attributes:
        trap: its name, always the same for the same trap, such as "shard-by-hand".
        weight: "wrong" (several workers would train on other samples than one), "slow", or
            "note".
        what: what was found, with the value.
        why: what comes of it.
        remedy: what to do.
    """

    trap: str
    weight: Weight
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.what} {self.why}\n    {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """How a dataset handed to `fit` will be shared out.

    Attributes:
        pipeline: its steps, from the source on.
        workers: how many processes it was looked at for.
        replicas: how many replicas these have together.
        batch_size: samples of a global batch; None where the batches may differ.
        batches: batches of one pass; None where unknown, -1 where it never ends.
        sharding: how it will be shared out, in a sentence.
        cost: what that costs, in a sentence.
        findings: its traps, the worst first.
    """

    pipeline: tuple[str, ...]
    workers: int
    replicas: int
    batch_size: int | None
    batches: int | None
    sharding: str
    cost: str
    findings: tuple[DatasetFinding, ...]

    @property
    def is_right(self) -> bool:
        """Whether several workers would see the samples that one would."""
        return all(finding.weight != "wrong" for finding in self.findings)

    def __str__(self) -> str:
        lines = [
            " -> ".join(self.pipeline),
            f"Sharing out: {self.sharding}",
            f"Cost: {self.cost}",
            *(f"- {finding}" for finding in self.findings),
        ]
        if not self.findings:
            lines.append("No known trap was found.")
        return "\n".join(lines)


def worst_first(findings: Iterable[DatasetFinding]) -> tuple[DatasetFinding, ...]:
    """By weight; within one weight in the order of the pipeline."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.weight)))
