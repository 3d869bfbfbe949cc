"""What was found in a script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a TPU will not take.

    Attributes:
        what: what was found, with the value.
        mend: what to do.
        where: `file:line` of the user's code; None where no line tells.
    """

    what: str
    mend: str
    where: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} {self.mend}"
