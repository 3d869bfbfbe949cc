"""When something is due: values that say "every so many steps, seconds or epochs"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import ConfigurationError

Unit = Literal["seconds", "steps", "epochs"]


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """Something falls due again and again.

    Attributes:
        every: how many units lie between one time and the next.
        unit: "seconds" of the chief's clock, training "steps" or "epochs".
    """

    every: float
    unit: Unit

    def __post_init__(self) -> None:
        least = 0 if self.unit == "seconds" else 1
        is_integer = self.unit == "seconds" or float(self.every).is_integer()
        if not self.every >= least or not is_integer:
            raise ConfigurationError(
                f"every_{self.unit} needs {'a number' if self.unit == 'seconds' else 'an integer'}"
                f" of at least {least}; found {self.every!r}."
            )


def every_n_seconds(seconds: float) -> Trigger:
    """Due when so many seconds have passed; 0 for each step at which the workers meet."""
    return Trigger(every=seconds, unit="seconds")


def every_n_steps(n: int) -> Trigger:
    """Due when the optimizer's steps pass a multiple of `n`."""
    return Trigger(every=n, unit="steps")


def every_n_epochs(n: int = 1) -> Trigger:
    """Due where every n-th epoch has ended, its validation included."""
    return Trigger(every=n, unit="epochs")
