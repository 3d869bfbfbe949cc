"""How fast two processes add up, and what that means for a model of some size."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.errors import ConfigurationError

PARAMETERS = 25_600_000
"""Of ResNet-50, where nobody says how many a model has."""
_BYTES = 4  # of a float32 gradient
_COUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kMB]?)")
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One all-reduce of two processes.

    Attributes:
        seconds: for a single number: what each all-reduce costs at least.
        rate: bytes a second of one process's gradients, beyond that.
    """

    seconds: float
    rate: float

    def of_a_step(self, parameters: int, workers: int = 2) -> float:
        """Seconds that adding up the gradients takes of a step.

        A ring sends 2 (n - 1) / n times the gradients over each link, which is once for two:
        https://doi.org/10.1016/j.jpdc.2008.09.002
        """
        return self.seconds + 2 * (workers - 1) / workers * parameters * _BYTES / self.rate

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{in_seconds(self.seconds)} for one number, {in_bytes(self.rate)}/s"


def needs(speed: Speed, parameters: int, workers: int = 2) -> str:
    """What a model of so many parameters would take, in words."""
    step = in_seconds(speed.of_a_step(parameters, workers))
    return (
        f"{in_millions(parameters)} parameters ({in_bytes(parameters * _BYTES)} of gradients) take "
        f"{step} of each step on {workers} workers"
    )


def parse_parameters(text: str) -> int:
    """`25.6M` as 25600000.

    Raises:
        ConfigurationError: the text is no such number.
    """
    match = _COUNT.fullmatch(text.strip())
    count = int(float(match["number"]) * _UNITS[match["unit"] or ""]) if match else 0
    if count < 1:
        raise ConfigurationError(
            f"--model-parameters must be a number such as 1000000, 25.6M or 7B; found {text!r}."
        )
    return count


def in_seconds(seconds: float) -> str:
    """0.0123 as "12 ms"."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def in_bytes(count: float) -> str:
    """120e6 as "120 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def in_millions(count: int) -> str:
    """25600000 as "25.6 million"."""
    return f"{count / 1e6:.3g} million" if count >= 1_000_000 else f"{count:,}"
