"""Gradients in TensorBoard and in the run's records: each worker's own, and the total."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from phalanx.callbacks.tensorboard_writer import TensorBoardRun
from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import ConfigurationError
from phalanx.gradients.gradient_probe import ProbeConfig
from phalanx.gradients.statistics import NoiseScale
from phalanx.monitoring.event_log import worker_event_log
from phalanx.monitoring.events import Gradients

_log = logging.getLogger(__name__)

GLOBAL_RUN = "global"
_CLIPPED = 1.0 - 1e-4  # a norm that fell by more than rounding was clipped


class GradientLogger(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Logs gradients of sampled steps, under every strategy, at almost no cost.

    Per variable: norm, mean, standard deviation, largest absolute value, share of zeros,
    number of entries that are not finite, ratio of update to weight, and a histogram. For
    the totals: norm before and after clipping, the share of steps that were clipped, each
    worker's cosine to the total, and the gradient noise scale with the critical batch size
    (McCandlish et al. 2018). One TensorBoard run per worker, with the mean gradient over
    its own samples, and one named "global", with the total over all of them.

    Steps that are not sampled run a graph with nothing of this in it.
    """

    needs_every_batch = False

    def __init__(
        self,
        *,
        every_n_steps: int = 100,
        layers: list[str] | tuple[str, ...] | None = None,
        sample_rate: float = 1.0,
        histograms: bool | int = True,
        max_overhead: float | None = 0.02,
        log_dir: str | Path | None = None,
    ) -> None:
        """Choose what to log.

        Args:
            every_n_steps: steps from one sampled step to the next, at least; the first
                step is sampled.
            layers: patterns of variable paths ("sequential/dense*"); None takes all.
            sample_rate: the share of layers in one sample, another one each time.
            histograms: True, False, or n for every n-th sample.
            max_overhead: the share of training time that logging may add; samples become
                rarer to stay under it. None lets it take what it takes, which every single
                step (`every_n_steps=1`) needs.
            log_dir: TensorBoard's directory; under `phalanx run` that of the run, else
                "logs/gradients".

        Raises:
            ConfigurationError: a value that cannot work.
        """
        super().__init__()
        _check(every_n_steps, sample_rate, histograms, max_overhead)
        self.every_n_steps = every_n_steps
        self.max_overhead = max_overhead
        self._layers = None if layers is None else tuple(layers)
        self._sample_rate = sample_rate
        self._histograms = histograms
        self._log_dir = log_dir
        self._noise = NoiseScale()
        self._clipped = [0, 0]
        self._runs: dict[str, TensorBoardRun] = {}
        self._shown = False

    def probe_config(self, sample: int) -> ProbeConfig:
        """What to compute of the gradients of sampled step `sample`, counted from 0."""
        every = int(self._histograms)
        wanted = every > 0 and sample % every == 0
        return ProbeConfig(layers=self._layers, sample_rate=self._sample_rate, histograms=wanted)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Close the files."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Nothing was seen yet."""
        self._shown = False

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Warn if nothing shows the gradients: the first step is always shown."""
        if not self._shown:
            self._shown = True
            _log.warning(
                "GradientLogger was given to Keras's own fit, which does not show it any "
                "gradients, so nothing is logged. Call phalanx.enable() first, or "
                "phalanx.fit(model, ...) in place of model.fit(...)."
            )

    def on_gradients(
        self, step: int, seen: list[dict[str, Any]], topology: ReplicaTopology
    ) -> None:
        """Log what this process's replicas saw at `step`; `fit` calls it."""
        self._shown = True
        for i, view in enumerate(seen):
            if view:
                self._log_own(step, view, _run_name(topology, i))
        if topology.is_chief and seen[0]:
            self._log_total(step, seen[0], topology)

    def _log_own(self, step: int, view: dict[str, Any], name: str) -> None:
        scalars = _variable_scalars(view, "local")
        scalars["gradients/norm"] = float(view["global"]["norm"])
        scalars["gradients/cosine_similarity"] = float(view["global"]["cosine"])
        self._write(name, step, scalars, _histograms(view, "local"))

    def _log_total(self, step: int, view: dict[str, Any], topology: ReplicaTopology) -> None:
        totals = view["global"]
        before = float(totals["total_norm"])
        after = float(totals["clipped_norm"])
        self._clipped[0] += after < before * _CLIPPED
        self._clipped[1] += 1
        scalars = _variable_scalars(view, "total")
        scalars |= {
            "gradients/norm": before,
            "gradients/clipped_norm": after,
            "gradients/clip_fraction": self._clipped[0] / self._clipped[1],
        }
        scalars |= {
            f"update_ratio/{p}": float(v["update_ratio"]) for p, v in _logged_variables(view)
        }
        scalars |= self._noise_scalars(totals, topology)
        self._write(GLOBAL_RUN, step, scalars, _histograms(view, "total"))

    def _noise_scalars(self, totals: dict[str, Any], topology: ReplicaTopology) -> dict[str, float]:
        batch = float(totals["batch"])
        if topology.total == 1 or batch == 0:
            return {}  # one replica has nothing to compare, a custom training loop no counts
        self._noise.update(
            batch / float(totals["holders"]),
            float(totals["mean_squared_norm"]),
            batch,
            float(totals["total_norm"]) ** 2,
        )
        critical = self._noise.critical_batch_size
        return {} if critical is None else {"gradients/noise_scale": float(critical)}

    def _write(
        self, name: str, step: int, scalars: dict[str, float], histograms: dict[str, Any]
    ) -> None:
        directory = self._directory()
        if name not in self._runs:
            self._runs[name] = TensorBoardRun(directory / name)
            if name == GLOBAL_RUN:
                self._runs[name].layout(LAYOUT)
        self._runs[name].scalars(step, scalars)
        if histograms:
            self._runs[name].histograms(step, histograms)
        self._runs[name].flush()
        if (event_log := worker_event_log(os.environ)) is not None:
            event_log.append(Gradients(run=name, step=step, values=scalars))

    def _directory(self) -> Path:
        spec = WorkerSpec.from_environment(os.environ)
        is_trial = spec is not None and spec.switches.trial_batches > 0
        if self._log_dir is not None and not is_trial:
            return Path(self._log_dir)
        if spec is not None and spec.run_dir is not None:
            return Path(spec.run_dir) / "tensorboard"
        return Path("logs") / "gradients"


LAYOUT = {
    "Gradients": {
        "Norm, each worker and the total": ["gradients/norm"],
        "Norm after clipping": ["gradients/clipped_norm"],
        "Share of steps clipped": ["gradients/clip_fraction"],
        "Agreement of workers (cosine)": ["gradients/cosine_similarity"],
        "Noise scale: the batch size worth having": ["gradients/noise_scale"],
    },
    "Layers": {
        "Gradient norm": ["gradient_norm/.*"],
        "Update to weight": ["update_ratio/.*"],
        "Share of zeros": ["gradient_zero_fraction/.*"],
    },
}
"""The custom-scalars page that the aggregate's run opens with."""


def _run_name(topology: ReplicaTopology, local: int) -> str:
    worker = topology.rank
    return f"worker-{worker}" if topology.local == 1 else f"worker-{worker}-replica-{local}"


def _logged_variables(view: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, found) for path, found in view["variables"].items() if found["kept"]]


def _variable_scalars(view: dict[str, Any], which: str) -> dict[str, float]:
    return {
        f"gradient_{name}/{path}": float(value)
        for path, found in _logged_variables(view)
        for name, value in found[which].items()
    }


def _histograms(view: dict[str, Any], which: str) -> dict[str, Any]:
    key = f"{which}_histogram"
    return {
        f"gradient/{path}": found[key] for path, found in _logged_variables(view) if key in found
    }


def _check(every: int, rate: float, histograms: bool | int, overhead: float | None) -> None:
    if not isinstance(every, int) or every < 1:
        raise ConfigurationError(
            f"every_n_steps must be an integer of at least 1; found {every!r}."
        )
    if not 0.0 < rate <= 1.0:
        raise ConfigurationError(f"sample_rate must be above 0 and at most 1; found {rate!r}.")
    if int(histograms) < 0:
        raise ConfigurationError(
            f"histograms must be True, False or a positive n; found {histograms!r}."
        )
    if overhead is not None and not overhead > 0.0:
        raise ConfigurationError(f"max_overhead must be above 0, or None; found {overhead!r}.")
