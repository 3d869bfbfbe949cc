"""Keep the step in which a gradient first was not finite, so that it can be run again.

It costs nothing until then: what keeps it is a branch of the step that is not taken. The batch
is at hand in the step itself, wherever it came from and however many steps run in one call; the
weights are still those before the step, since such a step is not applied.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.checkpoint.replica_values import read_component
from phalanx.checkpoint.step_capture import (
    FOLDER,
    CapturedPart,
    CaptureInfo,
    StepCapture,
    write_captured,
)
from phalanx.checkpoint.variable_names import model_variables, paths_of
from phalanx.cluster.spec import WorkerSpec
from phalanx.data.batch_iterator import BatchIterator
from phalanx.distributed.topology import ReplicaTopology, rows_of
from phalanx.gradients.nonfinite import NonFiniteGuard
from phalanx.keras_compat.model_access import loss_scale_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _ReplicaReport:
    """What one replica says of a step.

    Attributes:
        data: its part of the batch.
        count: samples in it.
        is_bad: whether its own gradients were bad.
        can_be: whether the total can be so by them.
    """

    data: Any
    count: int
    is_bad: bool
    can_be: bool


class NonFiniteCapture:
    """Watches the steps of one function, and keeps the first that goes wrong.

    Attributes:
        stream: where the batches come from, if it knows which samples are in one.
        running: the steps trained before the execution under way, and how many it has.
        directory: where the step was kept; None where none was, or by another worker.
    """

    def __init__(
        self, model: Any, topology: ReplicaTopology, guard: NonFiniteGuard, to: CaptureDir
    ) -> None:
        """Watch by `guard`; `to` is asked when a step is to be kept."""
        self._model = model
        self._topology = topology
        self._to = to
        self.guard = guard
        self.stream: BatchIterator | None = None
        self.running = (0, 1)
        self.directory: Path | None = None
        self._lock = threading.Lock()
        self._reports: dict[int, _ReplicaReport] = {}
        self._reported_step: int | None = None

    def watch(self, element: Any) -> None:
        """Keep `element`, `(total, parts)`, if its step, just run, went wrong; to be traced.

        For a process with one replica, from which all came then.
        """
        total, (part,) = element
        bad = tf.constant(True)
        tf.cond(
            self.guard.unseen(),
            lambda: self.keep(self._topology.first, total, part, *self.guard.see(), bad, bad),
            lambda: tf.constant(True),
        )

    def keep(
        self,
        replica: int,
        total: Any,
        part: Any,
        step: Any,
        variable: Any,
        is_bad: Any,
        can_be: Any,
    ) -> tf.Tensor:
        """Keep a replica's part of the batch whose step went wrong; to be traced.

        Args:
            replica: its number.
            total: samples in the global batch.
            part: how many of them are its, and they; nothing is done where it holds sparse or
                ragged tensors.
            step: the optimizer's iteration.
            variable: the position of the first variable with a bad gradient.
            is_bad: whether its own gradients were bad.
            can_be: whether the total can be so by them.
        """
        flat = [each for each in tf.nest.flatten(part) if each is not None]
        if not all(isinstance(each, tf.Tensor) for each in flat):
            return tf.constant(False)
        like = tf.nest.map_structure(lambda each: each is not None, part)
        given = [total, step, variable, is_bad, can_be, *flat]
        kept: tf.Tensor = tf.numpy_function(partial(self._keep, replica, like), given, tf.bool)
        return kept

    def _keep(
        self,
        replica: int,
        like: Any,
        total: Any,
        step: Any,
        variable: Any,
        is_bad: Any,
        can_be: Any,
        *flat: Any,
    ) -> Any:
        """Called from within the step; whatever goes wrong here, training continues."""
        try:
            arrays = iter(flat)
            there = [next(arrays) if is_there else None for is_there in tf.nest.flatten(like)]
            count, data = tf.nest.pack_sequence_as(like, there)
            report = _ReplicaReport(
                data=data, count=int(count), is_bad=bool(is_bad), can_be=bool(can_be)
            )
            with self._lock:
                all_reported = self._all_replicas_reported(int(step), replica, report)
                if all_reported is not None:
                    self._write(int(step), int(variable), int(total), all_reported, replica)
        except Exception as error:
            _log.warning("a step that was not finite cannot be kept: %s", error)
        return np.True_

    def _all_replicas_reported(
        self, step: int, replica: int, report: _ReplicaReport
    ) -> list[_ReplicaReport] | None:
        """What all replicas of this process have said of a step; None until the last of them has.

        None of them waits for another: the threads in which they wait would be TensorFlow's own.
        """
        if step != self._reported_step:
            self._reported_step, self._reports = step, {}
        self._reports[replica] = report
        if len(self._reports) < self._topology.local:
            return None
        self._reported_step = None
        return [self._reports[each] for each in sorted(self._reports)]

    def _write(
        self, step: int, variable: int, total: int, report: list[_ReplicaReport], replica: int
    ) -> None:
        """Write what was `report`; `replica`, the last, has not changed its weights yet."""
        if self._to.folder is None or self._to.left < 1 or not any(each.can_be for each in report):
            return
        variables = model_variables(self._model)
        read = partial(read_component, replica - self._topology.first)
        weights = {name: read(variable) for name, variable in variables.items()}
        batches = tuple(h.data if isinstance(h.data, tuple) else (h.data,) for h in report)
        size = _bytes(weights.values()) + _bytes(tf.nest.flatten(batches))
        if size > self._to.most_bytes:
            _log.warning(
                "step %d was not finite; its batch and weights are %.1f GB, more than the %.1f "
                "that are kept",
                step + 1,
                size / 1e9,
                self._to.most_bytes / 1e9,
            )
            return
        self._to.left -= 1
        config, why_not = _config_of(self._model)
        captured = CaptureInfo(
            about=self._about(step, variable, total, report, read, why_not),
            batches=batches,
            weights=weights,
            paths=paths_of(variables),
            config=config,
        )
        self.directory = write_captured(self._to.folder, captured)
        _log.warning("step %d was not finite; it is kept in %s", step + 1, self.directory)

    def _about(
        self,
        step: int,
        variable: int,
        total: int,
        report: list[_ReplicaReport],
        read: Any,
        why_not: str,
    ) -> StepCapture:
        rows, places = self._samples(step)
        parts = []
        for i, each in enumerate(report):
            replica = self._topology.first + i
            start, _ = rows_of(replica, self._topology.total, total)
            own = slice(start, start + each.count)
            parts.append(
                CapturedPart(
                    replica=replica,
                    count=each.count,
                    start=start,
                    rows=rows[own],
                    places=places[own],
                    is_bad=each.is_bad,
                )
            )
        paths, is_scaled = self.guard.paths, self.guard.policy == "watch"
        return StepCapture(
            rank=self._topology.rank,
            step=step + 1,
            replicas=self._topology.total,
            total=total,
            variable="" if is_scaled else paths[variable],
            policy=self.guard.policy,
            loss_scale=loss_scale_of(self._model, read),
            parts=tuple(parts),
            model=why_not,
        )

    def _samples(self, step: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Numbers and places of the samples in the global batch, as far as they are known."""
        trained, steps = self.running
        if self.stream is None or (steps > 1 and self.guard.policy == "watch"):
            return (), ()  # a step that the optimizer left out before is not counted
        rows = self.stream.rows(step - trained if steps > 1 else 0)
        if rows is None:
            return (), ()
        where = getattr(self.stream.source, "where", None)
        numbers = tuple(int(row) for row in rows)
        return numbers, tuple(where(row) for row in numbers) if where else ()


def _config_of(model: Any) -> tuple[Any, str]:
    """How to build the model again; or None, and why that is not known."""
    try:
        return keras.saving.serialize_keras_object(model), ""
    except Exception as error:  # whatever a layer's own get_config raises
        return None, f"{type(error).__name__}: {error}"


def _bytes(arrays: Any) -> int:
    return sum(0 if a is None else int(np.asarray(a).nbytes) for a in arrays)


MOST_BYTES = 4 * 10**9
"""Of batch and weights together; a step with more is not kept."""


@dataclass
class CaptureDir:
    """Where this process keeps steps, and how many more.

    Attributes:
        folder: where; None to keep none.
        left: how many more this process may keep.
        most_bytes: of batch and weights of one step.
    """

    folder: Path | None = None
    left: int = 1
    most_bytes: int = MOST_BYTES


_here: CaptureDir | None = None


def capture_dir() -> CaptureDir:
    """Where this process keeps steps: in the run's directory, under `phalanx run`."""
    global _here
    if _here is None:
        spec = WorkerSpec.from_environment(os.environ)
        run = None if spec is None else spec.run_dir
        _here = CaptureDir(folder=None if run is None else Path(run) / FOLDER)
    return _here


def forget_capture_dir() -> None:
    """Look for the place again when it is next needed, as a new process does."""
    global _here
    _here = None


def capture_hint(step: int) -> str:
    """A sentence that says how to look at a step, if some worker has kept it."""
    folder = capture_dir().folder
    kept = [] if folder is None else list(folder.glob(f"worker-*-step-{step}"))
    if folder is None or not kept:
        return ""
    return f" It is kept: `phalanx debug replay {folder.parent}` names the layer and the samples."
