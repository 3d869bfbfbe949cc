"""The callbacks that `fit` drives itself, next to Keras's hooks, and how it finds them.

A callback takes part by having the attributes of a protocol; `fit` looks for them here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError
from phalanx.gradients.gradient_probe import ProbeConfig
from phalanx.monitoring.throughput import ThroughputNumbers

T = TypeVar("T")


@runtime_checkable
class ThroughputListener(Protocol):
    """A callback that gets the throughput of each window of training.

    Attributes:
        every_n_seconds: length of a window in seconds of training, by the chief's clock.
        wants_workers: whether it needs every worker's times, which takes a small all-gather.
    """

    every_n_seconds: float
    wants_workers: bool

    def on_throughput(self, numbers: ThroughputNumbers, *, is_chief: bool) -> None:
        """Called at the end of each window, on every worker."""


@runtime_checkable
class GradientListener(Protocol):
    """A callback that gets the gradients of sampled steps.

    Attributes:
        every_n_steps: steps from one sampled step to the next.
        max_overhead: fraction of the training time that sampling may take; None for no limit.
    """

    every_n_steps: int
    max_overhead: float | None

    def probe_config(self, sample: int) -> ProbeConfig:
        """What to compute of the gradients of sampled step `sample`, counted from 0."""

    def on_gradients(
        self, step: int, seen: list[dict[str, Any]], topology: ReplicaTopology
    ) -> None:
        """Called after each sampled step, with NumPy values for each local replica."""


@runtime_checkable
class LocalMetricsReader(Protocol):
    """A callback that reads metrics over this worker's own samples.

    Attributes:
        local_metrics: set by `fit` to a function that returns them by name.
    """

    local_metrics: Callable[[], Mapping[str, Any]]


def throughput_listeners(callbacks: Iterable[Any]) -> list[ThroughputListener]:
    """The callbacks that get the throughput."""
    return [callback for callback in callbacks if isinstance(callback, ThroughputListener)]


def local_metrics_readers(callbacks: Iterable[Any]) -> list[LocalMetricsReader]:
    """The callbacks that read this worker's own metrics."""
    return [callback for callback in callbacks if isinstance(callback, LocalMetricsReader)]


def gradient_listener(callbacks: Iterable[Any]) -> GradientListener | None:
    """The callback that gets the gradients of sampled steps, if any.

    Raises:
        ConfigurationError: there are several, which would each need steps of their own.
    """
    found = [callback for callback in callbacks if isinstance(callback, GradientListener)]
    return at_most_one(found, advice="Give one GradientLogger the layers and histograms of all.")


def at_most_one(found: list[T], *, advice: str) -> T | None:
    """The one callback of a kind of which `fit` drives one.

    Raises:
        ConfigurationError: there are several; the message ends with `advice`.
    """
    if len(found) > 1:
        names = ", ".join(type(callback).__name__ for callback in found)
        raise ConfigurationError(
            f"fit drives one callback of this kind; found {len(found)}: {names}. {advice}"
        )
    return found[0] if found else None
