"""How fast training goes, and where the time of a step goes."""

from __future__ import annotations

import logging

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.validation import check_seconds
from phalanx.monitoring.throughput import ThroughputNumbers

_log = logging.getLogger(__name__)


class ThroughputMonitor(Callback):
    """Measures and logs throughput, under every strategy, at almost no cost.

    Samples a second of all workers together; median and 95th percentile of a step; the
    time_fractions of time that went to waiting for input, computing, communication between workers,
    callbacks and saving; the memory of each worker. Tracing, the first steps and validation
    are left out. About ten steps in a window are timed in their parts and stand for the others.

    Under `phalanx run` the same numbers are in the run's records without this callback; there,
    communication is measured only once tracing the step again is little next to the training
    so far, while with it that begins at once.

    Attributes:
        numbers: what was measured so far, window by window: `ThroughputNumbers`, with
            every worker's own times in `workers`.
    """

    logs_every_n_steps = 0
    wants_workers = True

    def __init__(self, *, every_n_seconds: float = 10.0, log: bool = True) -> None:
        """Choose how often.

        Args:
            every_n_seconds: seconds of training in a window, about; the chief's clock decides.
                Shorter windows are used where another callback asks for them. An epoch's
                end closes a window too, if it holds a second at least.
            log: whether the chief logs each window, by the logger "phalanx", level INFO.

        Raises:
            ConfigurationError: `every_n_seconds` is not above 0.
        """
        super().__init__()
        check_seconds("every_n_seconds", every_n_seconds)
        self.every_n_seconds = every_n_seconds
        self.numbers: list[ThroughputNumbers] = []
        self._log = log

    def on_throughput(self, numbers: ThroughputNumbers, *, is_chief: bool) -> None:
        """Keep and log one window; `fit` calls it."""
        self.numbers.append(numbers)
        if self._log and is_chief:
            _log.info("%s", describe(numbers))


def describe(numbers: ThroughputNumbers) -> str:
    """One line for people."""
    steps = numbers.step_seconds
    rate = numbers.samples_per_second
    parts = [
        "samples/s unknown" if rate is None else f"{rate:.4g} samples/s",
        f"step {_milliseconds(steps['p50'])} (p95 {_milliseconds(steps['p95'])})",
        ", ".join(f"{n} {s:.0%}" for n, s in numbers.time_fractions.items() if s is not None),
        "memory " + ", ".join(_memory(numbers)),
    ]
    return f"step {numbers.step}: " + "; ".join(parts)


def _memory(numbers: ThroughputNumbers) -> list[str]:
    known = [worker.memory_bytes for worker in numbers.workers if worker.memory_bytes is not None]
    of_each = known or [numbers.memory_bytes]
    return [f"{memory / 2**20:.0f} MiB" for memory in of_each]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
