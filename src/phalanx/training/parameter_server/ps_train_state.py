"""The state of a `fit` whose variables are on servers, as `phalanx.training.train_state` has it.

The same names and the same form: variables whole, however many servers keep them, and the place
in the data. So what was saved here continues with other servers, other workers, or one device.
Next to it is what only workers at their own pace need: which of them has done what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phalanx.checkpoint.reader import LoadedCheckpoint
from phalanx.checkpoint.replica_values import LOCAL, Rows
from phalanx.checkpoint.variable_names import metric_variables, model_variables, optimizer_variables
from phalanx.checkpoint.writer import Snapshot
from phalanx.data.dataset_identity import DatasetIdentity, translate
from phalanx.data.iterator_position import DataPosition
from phalanx.distributed.topology import ReplicaTopology
from phalanx.keras_compat.draw_counters import DrawCounters
from phalanx.keras_compat.ps_variables import value_of
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.parameter_server.metric_accumulator import MetricAccumulator
from phalanx.training.parameter_server.scheduler import StepScheduler
from phalanx.training.parameter_server.worker_data import WorkerData
from phalanx.training.train_state import TrainProgress, TrainState

_SERVERS = "servers"
_TOTALS = f"{_SERVERS}/totals/"


class ShardedRows(Rows):
    """A variable that servers keep, in shards or not, as what a checkpoint takes rows of."""

    def __getitem__(self, rows: Any) -> np.ndarray:
        """These rows in host memory; all for `...`."""
        whole: np.ndarray = np.asarray(value_of(self.variable).numpy())
        return whole if rows is Ellipsis else whole[rows]


@dataclass(kw_only=True)
class PassProgress:
    """What was counted in the epoch under way.

    Attributes:
        totals: None between two epochs.
    """

    totals: MetricAccumulator | None = None


class ServerCapture(TrainState):
    """Reads the state of one `fit` on servers while all make no progress, and writes it back."""

    def __init__(
        self,
        model: Any,
        data: WorkerData,
        dispatch: StepScheduler,
        cadence: MetricsSchedule,
        tally: PassProgress,
    ) -> None:
        """Look at nothing yet.

        Args:
            model: the model, built.
            data: its data on the workers.
            dispatch: gives out its steps.
            cadence: when its metrics are read.
            tally: what was counted in the epoch under way.
        """
        position: Any = _DataPosition(data, dispatch)
        super().__init__(model, _no_function(), position, cadence, keeps_iterator=False)
        self._data = data
        self._tally = tally
        self._counted: LoadedCheckpoint | None = None

    @property
    def _draw_counters(self) -> DrawCounters:
        """None: the workers draw, each in its own order."""
        return DrawCounters()

    def read(
        self,
        moment: TrainProgress,
        *,
        fit: int,
        best: float | None,
        logs: Mapping[str, Any],
        lineage: Mapping[str, Any],
    ) -> Snapshot:
        """The state now; see `TrainState.read`."""
        # A step that a lost worker had started was done twice, and counts once.
        self._model.optimizer.iterations.assign(moment.step)
        totals = self._tally.totals if moment.batch else None
        if totals is not None:
            totals.store()
        snapshot = super().read(moment, fit=fit, best=best, logs=logs, lineage=lineage)
        numbers, states = totals.read() if totals is not None else (None, {})
        servers = {"data": self._data.state(), "totals": numbers}
        return replace(
            snapshot,
            arrays=self.shared(),
            state={**snapshot.state, _SERVERS: servers},
            own={**snapshot.own, **self._metrics(), **{_TOTALS + i: s for i, s in states.items()}},
        )

    def shared(self) -> dict[str, Rows]:
        """Model and optimizer, whole."""
        whole = model_variables(self._model) | optimizer_variables(self._model)
        return {name: ShardedRows(variable) for name, variable in whole.items()}

    def write(self, loaded: LoadedCheckpoint) -> None:
        """Restore everything; before the first step."""
        super().write(loaded)
        state = loaded.manifest.state
        servers = state.get(_SERVERS) or {}
        position = self.position(loaded)
        progress = servers.get("data") if self._saved_data is None else None
        self._data.restore(position, progress)
        self._counted = loaded if position.batch else None

    def write_totals(self, totals: MetricAccumulator) -> None:
        """Restore, once, what was counted in the middle of an epoch; as new elsewhere."""
        loaded, self._counted = self._counted, None
        if loaded is None:
            return
        state, arrays = loaded.manifest.state, loaded.arrays
        numbers = (state.get(_SERVERS) or {}).get("totals")
        if numbers is None:
            totals.take_over(self.position(loaded).batch)
            return
        found = {k.removeprefix(_TOTALS): v for k, v in arrays.items() if k.startswith(_TOTALS)}
        totals.write(numbers, found)

    @property
    def _topology(self) -> ReplicaTopology:
        return ReplicaTopology()

    def _local_variables(self) -> dict[str, Any]:
        """Nothing is any worker's own."""
        return {}

    def _metrics(self) -> dict[str, np.ndarray]:
        """What one device would have counted."""
        named = metric_variables(self._model).items()
        return {f"{LOCAL}/0/{name}": ShardedRows(variable)[...] for name, variable in named}


@dataclass(frozen=True)
class _DataPosition:
    """The data of workers at their own pace, as far as `TrainState` asks for it."""

    data: WorkerData
    dispatch: StepScheduler

    def position(self, batch: int, *, since: int) -> DataPosition:
        """The position of training."""
        del since
        return self.data.position(batch=batch, trained=self.dispatch.position)

    @property
    def identity(self) -> DatasetIdentity:
        """Which data it is, for a checkpoint."""
        return self.data.identity

    def translate(self, position: DataPosition, saved: DatasetIdentity) -> DataPosition:
        """A position in the data `saved`, in this data."""
        return translate(position, saved, self.identity)

    def restore(self, position: DataPosition, state: Any) -> None:
        """Take that position; `ServerCapture.write` sends it to the data itself."""
        del state
        self.dispatch.start(position.trained)


def _no_function() -> Any:
    """No replica of this process trains."""
    return None
