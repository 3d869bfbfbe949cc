"""What `phalanx run` was asked to do so that mistakes are found, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.errors import ConfigurationError

_STEPS = re.compile(r"(?P<first>\d+)(?::(?P<last>\d+))?")


@dataclass(frozen=True, kw_only=True)
class ProfiledSteps:
    """Which steps TensorFlow's profiler looks at, and on which workers.

    Attributes:
        first: the first step, counted from 1.
        last: the last one.
        workers: their ranks.
    """

    first: int
    last: int
    workers: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        """What it is called in a run's directory."""
        return f"steps-{self.first}-{self.last}"


@dataclass(frozen=True, kw_only=True)
class DebugOptions:
    """How a run looks for mistakes.

    Attributes:
        debug: run the steps eagerly, and compare what the workers pass to each collective.
        debug_rank: the rank whose `breakpoint()` has the terminal.
        trial_batches: batches of training and validation of a run that keeps nothing; 0 for a
            run in earnest.
        overfit_batches: train and validate on so many batches alone; 0 for all.
        profile: what the profiler looks at.
        log_gradients: log the gradients of each `fit` that has no `GradientLogger` of its own.
    """

    debug: bool = False
    debug_rank: int = 0
    trial_batches: int = 0
    overfit_batches: int = 0
    profile: ProfiledSteps | None = None
    log_gradients: bool = False

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> DebugOptions:
        """The switches of which `asdict` gave these fields, through JSON."""
        profile = fields.get("profile")
        if profile is not None:
            profile = ProfiledSteps(**{**profile, "workers": tuple(profile["workers"])})
        return cls(**{**fields, "profile": profile})


def parse_profile(steps: str | None, workers: str | None) -> ProfiledSteps | None:
    """`10:15` and `0,1`, as given to `--profile` and `--profile-ranks`.

    Raises:
        ConfigurationError: one of them is not of that form.
    """
    if steps is None:
        if workers is not None:
            raise ConfigurationError(
                f"--profile-ranks {workers} needs steps: give --profile as well."
            )
        return None
    match = _STEPS.fullmatch(steps.strip())
    first = int(match["first"]) if match else 0
    last = int(match["last"] or first) if match else 0
    if not 1 <= first <= last:
        raise ConfigurationError(
            "--profile must be a step or FIRST:LAST, counted from 1, such as 10:15; "
            f"found {steps!r}."
        )
    if workers is None:
        return ProfiledSteps(first=first, last=last)
    ranks = workers.split(",")
    if not all(rank.strip().isdecimal() for rank in ranks):
        raise ConfigurationError(
            f"--profile-ranks must be ranks, such as 0 or 0,1; found {workers!r}."
        )
    chosen = tuple(sorted({int(rank) for rank in ranks}))
    return ProfiledSteps(first=first, last=last, workers=chosen)
