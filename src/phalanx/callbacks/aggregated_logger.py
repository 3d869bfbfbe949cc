"""Global metrics through Python's `logging`, and how far the workers are apart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from phalanx.callbacks.callback import Callback
from phalanx.callbacks.validation import check_count

_log = logging.getLogger(__name__)

Spread = Mapping[str, Sequence[float]]
"""A metric's value on each worker, by name."""


class AggregatedLogger(Callback):
    """Logs metrics over the samples of all workers, once for all: on the chief.

    With `spread=True` each line also says how far the workers are apart: every metric's
    least and greatest value over one worker's own samples, and which workers these are.
    """

    needs_every_batch = False

    def __init__(
        self,
        *,
        every_n_steps: int | None = 100,
        spread: bool = False,
        logger: logging.Logger | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Choose what to log.

        Args:
            every_n_steps: global batches from one line to the next, counted through all
                epochs; None for a line at each epoch's end only. The metrics are read at
                these steps, which costs an all-reduce.
            spread: whether to say how far the workers are apart, which costs a small gather
                for each line. With one worker there is nothing to say.
            logger: where to log; "phalanx.callbacks.aggregated_logger" when None.
            level: the level of each line, such as `logging.INFO`.

        Raises:
            ConfigurationError: `every_n_steps` is not positive.
        """
        super().__init__()
        if every_n_steps is not None:
            check_count("every_n_steps", every_n_steps)
        self.logs_every_n_steps = every_n_steps or 0
        self.runs_on = "all" if spread else "chief"
        self.local_metrics: Callable[[], Mapping[str, Any]] = dict
        self._every = every_n_steps
        self._spread = spread
        self._logger = logger or _log
        self._level = level
        self._passed = 0
        self._batch = -1
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Batches count from 0 again."""
        self._epoch = epoch
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log where the metrics were read for it."""
        self._passed += batch - self._batch
        self._batch = batch
        if self._every is not None and self._passed >= self._every:
            self._passed = 0
            self._write(f"epoch {self._epoch + 1}, batch {batch + 1}", logs or {})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log the epoch's metrics, those of a validation too."""
        self._write(f"epoch {epoch + 1}", logs or {})

    def _write(self, where: str, logs: Mapping[str, Any]) -> None:
        spread = self._gather() if self._spread else {}
        if self.cluster.is_chief:
            self._logger.log(self._level, "%s: %s", where, describe(logs, spread))

    def _gather(self) -> Spread:
        if self.cluster.workers == 1:
            return {}
        own = {name: value for name, value in self.local_metrics().items() if np.ndim(value) == 0}
        names = sorted(own)
        values = np.array([float(own[name]) for name in names], np.float64)
        of_each = [arrays[0] for arrays in self.cluster.gather([values])]
        return {name: [float(v[i]) for v in of_each] for i, name in enumerate(names)}


def describe(logs: Mapping[str, Any], spread: Spread) -> str:
    """One line for people: each metric, and its spread where it is known."""
    return ", ".join(_one(name, logs[name], spread.get(name, ())) for name in logs)


def _one(name: str, value: Any, of_each: Sequence[float]) -> str:
    text = f"{name} {value:.4g}" if np.ndim(value) == 0 else f"{name} {value}"
    if not of_each:
        return text
    # NaN first: neither the least nor the greatest would be right next to it.
    odd = [rank for rank, own in enumerate(of_each) if np.isnan(own)]
    if odd:
        return f"{text} (nan on worker {', '.join(map(str, odd))})"
    least, greatest = int(np.argmin(of_each)), int(np.argmax(of_each))
    return (
        f"{text} ({of_each[least]:.4g} on worker {least} to {of_each[greatest]:.4g} on worker "
        f"{greatest})"
    )
