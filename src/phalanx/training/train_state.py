"""The whole state of a `fit` as a snapshot, and back into a fresh process."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.checkpoint.callback_state import CallbackStates
from phalanx.checkpoint.reader import LoadedCheckpoint, check_compatible
from phalanx.checkpoint.replica_values import Rows, assign, assign_local, local_arrays
from phalanx.checkpoint.rng_state import read_rng_state, write_rng_state
from phalanx.checkpoint.sharding import describe
from phalanx.checkpoint.variable_names import (
    metric_variables,
    model_variables,
    optimizer_variables,
    paths_of,
)
from phalanx.checkpoint.writer import Snapshot
from phalanx.data.batch_iterator import BatchIterator
from phalanx.data.dataset_identity import DatasetIdentity
from phalanx.data.iterator_position import DataPosition
from phalanx.distributed.topology import ReplicaTopology
from phalanx.errors import CheckpointMismatchError
from phalanx.gradients.nonfinite import NonFiniteGuard, guard_of
from phalanx.keras_compat.draw_counters import DrawCounters
from phalanx.keras_compat.model_access import recurrent_states, steps_trained
from phalanx.keras_compat.optimizer_clippers import innermost
from phalanx.training.local_steps import LocalSteps
from phalanx.training.metrics import forget_wholes, own_shares
from phalanx.training.metrics_schedule import MetricsSchedule
from phalanx.training.step_function import StepFunction

_WORKER = "worker"
_CALLBACKS = "callbacks"
_ITERATOR = "iterator"
_RNG_STATE = "chance"
_RECURRENT = "recurrent"

_log = logging.getLogger("phalanx")


@dataclass(frozen=True, kw_only=True)
class TrainProgress:
    """The position of a training.

    Attributes:
        step: steps trained in all.
        epoch: the epoch under way, or the next where one has just ended.
        batch: batches of it that are trained.
        since: of these, how many in the execution under way.
        is_complete: whether the `fit` has ended.
        is_stopped: whether a callback has ended it before its last epoch.
    """

    step: int
    epoch: int
    batch: int = 0
    since: int = 0
    is_complete: bool = False
    is_stopped: bool = False


class TrainState:
    """Reads the state of one `fit`, and writes it back."""

    def __init__(
        self,
        model: Any,
        function: StepFunction,
        stream: BatchIterator,
        cadence: MetricsSchedule,
        local: LocalSteps | None = None,
        *,
        keeps_iterator: bool,
    ) -> None:
        """Look at nothing yet.

        Args:
            model: the model, built.
            function: its training steps.
            stream: its data.
            cadence: when its metrics are read.
            local: its local steps; None where it trains in step.
            keeps_iterator: whether to save what a `tf.data` pipeline holds.
        """
        self._model = model
        self._function = function
        self._stream = stream
        self._cadence = cadence
        self._local = local
        self._keeps_iterator = keeps_iterator
        self._states = CallbackStates([])
        self._saved_data: DatasetIdentity | None = None

    @property
    def _topology(self) -> ReplicaTopology:
        return self._function.plan.topology

    def note_callbacks(self, callbacks: list[Any]) -> None:
        """Training begins: from here on, what changes in callbacks is their state."""
        self._states = CallbackStates(callbacks)

    def read(
        self,
        moment: TrainProgress,
        *,
        fit: int,
        best: float | None,
        logs: Mapping[str, Any],
        lineage: Mapping[str, Any],
    ) -> Snapshot:
        """The state now; tensors are copied when the snapshot is taken, not here.

        Args:
            moment: the position of training.
            fit: the number of this `fit` among those that use the directory, from 0.
            best: the best value so far of what `best` goes by.
            logs: of the epoch that has just ended, which `best` goes by; else empty.
            lineage: who writes it, and what it follows.
        """
        position = self._stream.position(moment.batch, since=moment.since)
        whole = self._whole()
        document, arrays = self._states.read()
        own = self._own(position, document)
        if self._topology.is_chief:
            own |= {f"{_CALLBACKS}/{name}": array for name, array in arrays.items()}
        return Snapshot(
            step=moment.step,
            epoch=moment.epoch,
            arrays=_rows_of(whole),
            own=own,
            state={
                "fit": fit,
                "updates": steps_trained(self._model),
                "complete": moment.is_complete,
                "stopped": moment.is_stopped,
                "best": best,
                "position": position.to_json(),
                "lineage": dict(lineage),
                "data": self._stream.identity.to_json(),
                "replicas": self._topology.total,
                "workers": self._topology.workers,
                "readings": self._cadence.passed,
                "nonfinite_count": self._nonfinite_steps(),
                "draw_counters": self._draw_counters.read(),
                "paths": paths_of(whole),
            },
            metrics=_numbers(logs),
        )

    def shared(self) -> dict[str, Rows]:
        """What is the same on every worker, of which each saves a share."""
        return _rows_of(self._whole())

    def check_compatible(self, loaded: LoadedCheckpoint, where: str) -> None:
        """Hold a checkpoint against the model before anything changes.

        Raises:
            CheckpointMismatchError: a tensor is missing, too many, of another shape or dtype.
        """
        held, optional = loaded.manifest.tensors(), self._zeros_where_missing()
        whole = {n: v for n, v in self._whole().items() if n in held or n not in optional}
        check_compatible(loaded.manifest, describe(_rows_of(whole)), where, paths=paths_of(whole))

    def check_data(self, loaded: LoadedCheckpoint, where: str, *, allow_change: bool) -> None:
        """Hold the data of a checkpoint against that of this `fit`, before anything changes.

        Args:
            loaded: a checkpoint of this `fit`.
            where: the checkpoints' place, for messages.
            allow_change: whether to continue in other data, after as many samples.

        Raises:
            CheckpointMismatchError: the data is different, and may not be; or workers share out
                the files of the pass under way in another way.
        """
        self._check_division(loaded, where)
        saved = DatasetIdentity.from_json(loaded.manifest.state.get("data"))
        changed = self._stream.identity.differences(saved)
        if not changed:
            return
        if not allow_change:
            raise CheckpointMismatchError(
                f"Asked to resume from step {loaded.manifest.step} of {where} with other data: "
                f"{'; '.join(changed)}. Give the data and batch size of the checkpoint, another "
                "directory, or Checkpoint(allow_data_change=True), which continues after as many "
                "samples as were trained."
            )
        self._saved_data = saved
        if self._topology.is_chief:
            _log.warning(
                "the data differs from that of the checkpoint: %s; training continues after as "
                "many samples",
                "; ".join(changed),
            )

    def _check_division(self, loaded: LoadedCheckpoint, where: str) -> None:
        position = DataPosition(**loaded.manifest.state["position"])
        if position.division is None:
            return
        if (now := self._stream.division(position.trained)) != position.division:
            saved, workers = loaded.manifest.state.get("workers"), self._topology.workers
            raise CheckpointMismatchError(
                f"Asked to resume from step {loaded.manifest.step} of {where}, in the middle of an "
                f"epoch, with {workers} worker(s), {now}; found a checkpoint of {saved} worker(s), "
                f"{position.division}. Samples would be repeated and left out. Resume with {saved} "
                "worker(s), or from a checkpoint of the end of an epoch. With "
                "tfrecords(..., index=True) a training resumes with any number of workers."
            )

    def position(self, loaded: LoadedCheckpoint) -> DataPosition:
        """The position of a checkpoint in the data of this `fit`."""
        saved = DataPosition(**loaded.manifest.state["position"])
        if self._saved_data is None:
            return saved
        return self._stream.translate(saved, self._saved_data)

    def write_variables(self, loaded: LoadedCheckpoint) -> None:
        """Restore model, optimizer and metrics."""
        arrays = loaded.arrays
        for name, variable in model_variables(self._model).items():
            assign(variable, arrays[name])
        for name, variable in optimizer_variables(self._model).items():
            assign(variable, arrays[name])
        assign_local(model_variables(self._model), arrays, self._topology)
        for name, variable in self._zeros_where_missing().items():
            assign(variable, arrays.get(name, np.zeros(variable.shape)))
        assign_local(self._own_of_local_steps(), arrays, self._topology)
        if self.position(loaded).batch:  # else an epoch begins, and counts from 0
            assign_local(metric_variables(self._model), arrays, self._topology)
            forget_wholes(self._model)

    def write(self, loaded: LoadedCheckpoint) -> None:
        """Restore everything: variables, chance, callbacks, the place in the data."""
        state, arrays = loaded.manifest.state, loaded.arrays
        self.write_variables(loaded)
        self._cadence.passed = list(state["readings"])
        if (guard := self._guard()) is not None:
            guard.start_from(int(state["nonfinite_count"]))
        self._draw_counters.restore(state["draw_counters"])
        document = json.loads(bytes(self._of_worker(arrays, _CALLBACKS)[""]))
        self._states.write(document, _below(f"{_CALLBACKS}/", arrays))
        is_same = self._keeps_iterator and self._saved_data is None
        is_same &= state["replicas"] == self._topology.total
        is_same &= state.get("workers") == self._topology.workers
        iterator = _below(f"{_WORKER}/{self._topology.rank}/{_ITERATOR}/", arrays)
        self._stream.restore(self.position(loaded), iterator if iterator and is_same else None)
        write_rng_state(self._of_worker(arrays, f"{_RNG_STATE}/"))  # last: opening data may draw

    def _whole(self) -> dict[str, Any]:
        variables = model_variables(self._model) | optimizer_variables(self._model)
        return variables | self._zeros_where_missing()

    def _zeros_where_missing(self) -> dict[str, Any]:
        """What a checkpoint may lack, and then begins with zeros.

        A training that started in step has no outer optimizer's momentum, and older checkpoints
        have no states of recurrent layers.
        """
        outer = {} if self._local is None else self._local.variables()
        return outer | self._recurrent_states()

    def _recurrent_states(self) -> dict[str, Any]:
        states = recurrent_states(self._model)
        return {f"{_RECURRENT}/{i}/{v.name}": v for i, v in enumerate(states)}

    def _own_of_local_steps(self) -> dict[str, Any]:
        """What each worker has in its own way between two syncs of local steps."""
        return {} if self._local is None else self._local.own_variables() | self._recurrent_states()

    def _own(self, position: DataPosition, document: Any) -> dict[str, np.ndarray]:
        """What this worker alone knows."""
        prefix = f"{_WORKER}/{self._topology.rank}"
        own = local_arrays(self._local_variables(), self._topology)
        own = own_shares(self._model, metric_variables(self._model), own, self._topology)
        own |= {f"{prefix}/{_RNG_STATE}/{name}": array for name, array in read_rng_state().items()}
        own[f"{prefix}/{_CALLBACKS}"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
        held = self._stream.iterator_state(position) if self._keeps_iterator else None
        own |= {f"{prefix}/{_ITERATOR}/{name}": array for name, array in (held or {}).items()}
        return own

    def _local_variables(self) -> dict[str, Any]:
        """What replicas may have each in their own way: metrics, and what layers assign."""
        local = metric_variables(self._model)
        if self._topology.total > 1:
            named = model_variables(self._model).items()
            local |= {name: v for name, v in named if id(v) in self._function.assigned}
            local |= self._own_of_local_steps()
        return local

    @property
    def _draw_counters(self) -> DrawCounters:
        """Those of the training step."""
        found = self._function.extensions.setdefault(DrawCounters, DrawCounters())
        assert isinstance(found, DrawCounters)
        return found

    def _nonfinite_steps(self) -> int:
        guard = self._guard()
        return 0 if guard is None else guard.count

    def _guard(self) -> NonFiniteGuard | None:
        optimizer = getattr(self._model, "optimizer", None)
        return None if optimizer is None else guard_of(innermost(optimizer))

    def _of_worker(self, arrays: Mapping[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
        """What this worker had, or the chief where there was no such worker."""
        own = _below(f"{_WORKER}/{self._topology.rank}/{what}", arrays)
        return own or _below(f"{_WORKER}/0/{what}", arrays)


def _rows_of(variables: Mapping[str, Any]) -> dict[str, Rows]:
    return {name: Rows(variable) for name, variable in variables.items()}


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """The logs that are single numbers."""
    found = {}
    for name, value in logs.items():
        with suppress(TypeError, ValueError):
            found[name] = float(value)
    return found


def _below(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
