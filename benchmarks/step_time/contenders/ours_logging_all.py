"""`phalanx.fit` with histograms of every gradient at every step."""

from __future__ import annotations

from pathlib import Path

from phalanx.callbacks import GradientLogger
from step_time.contenders import ours_logged


class Contender(ours_logged.Contender):
    def logger(self, logs: Path) -> GradientLogger:
        return GradientLogger(log_dir=logs, every_n_steps=1, max_overhead=None)
