"""What several callbacks ask of their options."""

from __future__ import annotations

from phalanx.errors import ConfigurationError


def check_seconds(name: str, value: float) -> None:
    """Raise unless `value` is a number of seconds above 0.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigurationError(f"{name} must be a number of seconds above 0; found {value!r}.")


def check_count(name: str, value: int) -> None:
    """Raise unless `value` is an integer of at least 1.

    Raises:
        ConfigurationError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be an integer of at least 1; found {value!r}.")
