"""The gradient noise scale: how large a batch is worth having (McCandlish et al. 2018)."""

from __future__ import annotations

import math


class NoiseScale:
    """Estimates the noise scale from gradient norms at two batch sizes, smoothed.

    McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, appendix A.1:
    with |G_B|^2 the squared norm of a mean gradient over B samples,

        |G|^2     = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
        tr(Sigma) = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

    are unbiased, and B_simple = tr(Sigma) / |G|^2. Both are smoothed apart, for the ratio
    of two noisy numbers is biased.
    """

    def __init__(self, smoothing: float = 0.95) -> None:
        """Start with nothing seen; `smoothing` (0 to 1) is what an update keeps."""
        self._smoothing = smoothing
        self._kept = 1.0
        self._squared_norm = 0.0
        self._trace = 0.0

    def update(
        self,
        small_batch: float,
        small_squared_norm: float,
        big_batch: float,
        big_squared_norm: float,
    ) -> None:
        """Take in one step: mean gradients over `small_batch` and over `big_batch` samples."""
        if not 0 < small_batch < big_batch or not math.isfinite(
            small_squared_norm + big_squared_norm
        ):
            return
        difference = big_batch * big_squared_norm - small_batch * small_squared_norm
        squared_norm = difference / (big_batch - small_batch)
        trace = (small_squared_norm - big_squared_norm) / (1 / small_batch - 1 / big_batch)
        keep = self._smoothing
        self._squared_norm = keep * self._squared_norm + (1 - keep) * squared_norm
        self._trace = keep * self._trace + (1 - keep) * trace
        self._kept *= keep

    @property
    def squared_norm(self) -> float:
        """The smoothed estimate of |G|^2, 0 before the first update."""
        return self._unbiased(self._squared_norm)

    @property
    def trace(self) -> float:
        """The smoothed estimate of tr(Sigma), 0 before the first update."""
        return self._unbiased(self._trace)

    @property
    def critical_batch_size(self) -> float | None:
        """B_simple, in samples; None while the estimates do not make sense."""
        if self.squared_norm <= 0 or self.trace < 0:
            return None
        return self.trace / self.squared_norm

    def _unbiased(self, average: float) -> float:
        return average / (1 - self._kept) if self._kept < 1 else 0.0
