"""What was asked of a pipeline, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from phalanx.errors import ConfigurationError

OnError = Literal["raise", "skip"]
_DISK = "disk:"


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The arguments of `phalanx.data.pipeline`; see there."""

    global_batch_size: int
    map: Callable[..., Any] | None = None
    augment: Callable[..., Any] | None = None
    map_batches: Callable[..., Any] | None = None
    shuffle: bool = True
    seed: int = 0
    cache: str | None = None
    cache_key: str | None = None
    drop_remainder: bool = False
    steps_per_epoch: int | None = None
    padding: Any = None
    balance: Any = None
    on_error: OnError = "raise"
    start: tuple[int, int] = (0, 0)
    parallel: int | None = None
    prefetch: int | None = None
    shuffle_buffer: int = 10_000
    deterministic: bool = True
    service: bool | str = False

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: an option is none of what it may be.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not _is_integer(value, least):
                raise ConfigurationError(
                    f"pipeline takes {name}: a whole number of at least {least}; found {value!r}."
                )
        for name in ("map", "augment", "map_batches"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigurationError(f"pipeline takes {name}: a function; found {value!r}.")
        if self.on_error not in get_args(OnError):
            raise ConfigurationError(
                f"pipeline takes on_error 'raise' or 'skip'; found {self.on_error!r}."
            )
        if self.cache not in (None, "memory") and not self.cache_directory:
            raise ConfigurationError(
                f"pipeline takes cache 'memory' or 'disk:PATH'; found {self.cache!r}."
            )
        if self.cache_key is not None and not (self.cache_directory and _is_name(self.cache_key)):
            raise ConfigurationError(
                "pipeline takes cache_key: a text that is not empty, next to cache='disk:PATH'; "
                f"found {self.cache_key!r} next to {self.cache!r}."
            )
        if len(self.start) != 2 or not all(_is_integer(value, 0) for value in self.start):
            raise ConfigurationError(
                f"pipeline takes start: (epoch, step), both from 0; found {self.start!r}."
            )

    @property
    def cache_directory(self) -> str | None:
        """The PATH of `cache="disk:PATH"`."""
        text = str(self.cache)
        return text.removeprefix(_DISK) or None if text.startswith(_DISK) else None


_LEAST = {
    "global_batch_size": 1,
    "seed": 0,
    "steps_per_epoch": 1,
    "parallel": 1,
    "prefetch": 1,
    "shuffle_buffer": 1,
}
"""The least that an option may be."""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_integer(value: Any, least: int) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and value >= least
