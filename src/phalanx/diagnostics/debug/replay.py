"""Run a step again that was not finite, and find out where it first went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.checkpoint.step_capture import CapturedPart, CaptureInfo
from phalanx.checkpoint.variable_names import model_variables
from phalanx.diagnostics.debug.diagnosis import Cause, cause_of, growth_of
from phalanx.diagnostics.debug.nonfinite_rows import OpCall, Range, Trace, Wrong, nonfinite_rows
from phalanx.gradients.replica_batch import is_seed
from phalanx.keras_compat.eager_probes import draws_of, gradients_of, in_float32, probe_ops
from phalanx.keras_compat.model_access import set_loss_scale
from phalanx.keras_compat.random_draws import ReplicaRows

_MOST_ALONE = 256


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample that went wrong.

    Attributes:
        index: its place among the samples of its replica, from 0.
        in_batch: its place in the global batch.
        row: its number in the data, where known.
        place: where it lies, in words, where known.
    """

    index: int
    in_batch: int
    row: int | None
    place: str


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """What was found.

    Attributes:
        part: which replica's samples were run.
        phase: "data", "weights", "forward", "backward", or "" where all was finite.
        layer: the layer or loss in which it began.
        operation: the TensorFlow operation in which it began.
        variable: the first variable whose gradient is not finite.
        given: the range of each input of that operation.
        dtype: what it computes in.
        samples: those that went wrong; empty where only all together do.
        cause: why, and what to do.
        growth: the largest absolute value after each layer.
    """

    part: CapturedPart
    phase: str = ""
    layer: str = ""
    operation: str = ""
    variable: str = ""
    given: tuple[Range, ...] = ()
    dtype: str = ""
    samples: tuple[Sample, ...] = ()
    cause: Cause | None = None
    growth: tuple[tuple[str, float], ...] = ()


class Replay:
    """Finds where a kept step first went wrong."""

    def __init__(self, model: Any, captured: CaptureInfo) -> None:
        """Load the weights into `model`, which is compiled."""
        self._captured = captured
        self._again = StepReplayer(model, captured)

    def run(self) -> ReplayResult:
        """Run the parts of the batch, those first that were not finite, until one is not."""
        found = [self._one(i) for i in self._again.order]
        return next((each for each in found if each.phase), found[0])

    def _one(self, i: int) -> ReplayResult:
        part, data = self._captured.about.parts[i], self._again.data(i)
        run = self._again.run(data, part)
        calls = run.calls
        growth = tuple(growth_of(calls))
        bad_data = _first_bad(data)
        variable = self._captured.about.variable
        variable = variable if variable in run.bad_variables else next(iter(run.bad_variables), "")
        if run.is_finite and bad_data is None:
            return ReplayResult(part=part, growth=growth)
        bad = next((call for call in calls if call.nonfinite_rows is not None), None)
        if bad is not None and not any(given.nonfinite for given in bad.inputs):
            bad_data = None  # a layer before has filled it in, or nothing reads it
        wrong = _chosen(run, bad)
        layer = wrong.layer if wrong else bad.name if bad else ""
        if bad_data is not None:
            name, array = bad_data
            rows = nonfinite_rows(array)
            cause = Cause(
                kind="data",
                summary=f"{name} holds {Range.of(array).nonfinite} numbers that are not finite",
                remedy="fix or leave out these samples; look at what reads and prepares them",
            )
            layer = bad.name if bad else layer
            phase, given = "data", (Range.of(array),)
            return ReplayResult(
                part=part, phase=phase, layer=layer, variable=variable, given=given,
                dtype=array.dtype.name, samples=self._samples(part, rows), cause=cause,
                growth=growth,
            )  # fmt: skip
        if (weight := self._bad_weight()) is not None:
            cause = Cause(
                kind="weights",
                summary=f"{weight} was not finite before the step",
                remedy="look at the steps before; resume from an earlier checkpoint",
            )
            return ReplayResult(
                part=part, phase="weights", layer=layer, variable=weight, cause=cause, growth=growth
            )
        if wrong is None:
            return ReplayResult(part=part, phase="backward", variable=variable, growth=growth)
        return ReplayResult(
            part=part,
            phase=wrong.phase,
            layer=wrong.layer,
            operation=wrong.operation,
            variable=variable,
            given=tuple(Range.of(a) for a in wrong.inputs),
            dtype=wrong.output.dtype.name,
            samples=self._samples(part, self._rows(wrong, bad, part, data)),
            cause=cause_of(wrong, calls, largest_in_float32=self._in_float32(wrong, data, part)),
            growth=growth,
        )

    def _bad_weight(self) -> str | None:
        paths, weights = self._captured.paths, self._captured.weights
        moving = ("moving_mean", "moving_variance")  # the step itself has changed these
        found = (
            paths.get(name, name)
            for name, array in weights.items()
            if not name.endswith(moving) and array.dtype.kind in "fV" and not is_finite(array)
        )
        return next(found, None)

    def _in_float32(self, wrong: Wrong, data: Any, part: CapturedPart) -> float | None:
        if wrong.output.dtype.name not in ("float16", "bfloat16"):
            return None
        run = self._again.run_in_float32(data, part)
        if not run.is_finite:
            return None
        given = [r.largest for c in run.calls if c.name == wrong.layer for r in c.outputs]
        return max(given, default=0.0)

    def _rows(self, wrong: Wrong, bad: OpCall | None, part: CapturedPart, data: Any) -> list[int]:
        count = part.count
        if wrong.output.ndim and len(wrong.output) == count:
            rows = nonfinite_rows(wrong.output)
        else:
            rows = [] if bad is None or bad.nonfinite_rows is None else bad.nonfinite_rows
        if rows and len(rows) < count and max(rows) < count:
            return rows
        return self._alone(data, part)

    def _alone(self, data: Any, part: CapturedPart) -> list[int]:
        """The samples that go wrong without the others."""

        def is_nonfinite(row: int) -> bool:
            one = tf.nest.map_structure(lambda a: None if a is None else a[row : row + 1], data)
            return not self._again.run(one, part, first=row).is_finite

        return [row for row in range(min(part.count, _MOST_ALONE)) if is_nonfinite(row)]

    def _samples(self, part: CapturedPart, rows: Sequence[int]) -> tuple[Sample, ...]:
        return tuple(
            Sample(
                index=row,
                in_batch=part.start + row,
                row=part.rows[row] if row < len(part.rows) else None,
                place=part.places[row] if row < len(part.places) else "",
            )
            for row in rows
        )


def _chosen(run: Run, bad: OpCall | None) -> Wrong | None:
    """The operation to blame: in the first layer that gave what is not finite, else backward."""
    wrongs = run.trace.wrongs
    if bad is not None:
        forward = [w for w in wrongs if w.phase == "forward"]
        own = [w for w in forward if w.layer == bad.name]
        return next(iter(own), next(iter(forward), None))
    backward = [w for w in wrongs if w.phase == "backward"]
    return next(iter(backward), next(iter(wrongs), None))


def _first_bad(data: tuple[Any, ...]) -> tuple[str, np.ndarray] | None:
    """The first array of the data that is not finite, by its name."""
    names = ("x", "y", "sample_weight")
    for name, value in zip(names, data, strict=False):
        flat = keras.tree.flatten(value)
        for i, array in enumerate(flat):
            if array is not None and array.dtype.kind in "fV" and not is_finite(array):
                return (name if len(flat) == 1 else f"{name}[{i}]"), array
    return None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One step, run again.

    Attributes:
        trace: what was seen of it.
        bad_variables: the paths of those whose gradients are not finite.
    """

    trace: Trace
    bad_variables: tuple[str, ...]

    @property
    def is_finite(self) -> bool:
        """Whether every layer's output and every gradient is."""
        return not self.bad_variables and not any(
            call.nonfinite_rows is not None for call in self.calls
        )

    @property
    def calls(self) -> Sequence[OpCall]:
        """The calls of layers and losses."""
        return self.trace.calls


class StepReplayer:
    """A model as it was before a step, and the step's data."""

    def __init__(self, model: Any, captured: CaptureInfo) -> None:
        """Load the weights into `model`, which is compiled, and build it where necessary."""
        self._model = model
        self._captured = captured
        self._before: list[tuple[Any, np.ndarray]] = []
        held = [i for i, part in enumerate(captured.about.parts) if part.count]
        self.order = sorted(held, key=lambda i: not captured.about.parts[i].is_bad)
        x, *_ = self.data(self.order[0])
        model(tf.nest.map_structure(lambda a: a[:1], x))
        set_loss_scale(model, captured.about.loss_scale)
        self._load_weights()

    def data(self, i: int) -> tuple[Any, ...]:
        """The samples of a part, without a stand-in row."""
        count = self._captured.about.parts[i].count
        cut = tf.nest.map_structure(
            lambda a: None if a is None else a[:count], self._captured.batches[i]
        )
        return tuple(cut)

    def run(self, data: Any, part: CapturedPart, *, first: int = 0, watched: bool = True) -> Run:
        """One step on `data`, samples of `part` from its `first` on; it changes no weight."""
        trace = Trace()
        tensors = tf.nest.map_structure(lambda a: None if a is None else tf.constant(a), data)
        with ExitStack() as stack:
            stack.enter_context(draws_of(self._rows(data, part, first)))
            caught = stack.enter_context(gradients_of(self._model.optimizer))
            stack.enter_context(probe_ops(trace) if watched else nullcontext())
            for variable, before in self._before:
                variable.assign(before)
            self._model.train_step(tensors)
        bad = [v for g, v in caught if g is not None and not is_finite(g)]
        return Run(trace=trace, bad_variables=tuple(self._path(v) for v in bad))

    def _rows(self, data: Any, part: CapturedPart, first: int) -> ReplicaRows:
        count = len(next(a for a in tf.nest.flatten(data) if a is not None))
        return ReplicaRows(
            start=part.start + first,
            own_rows=count,
            total=self._captured.about.total,
            static_count=count,
            replica=part.replica,
        )

    def run_in_float32(self, data: Any, part: CapturedPart) -> Run:
        """The same with every layer computing in float32."""
        with in_float32(self._model):
            return self.run(data, part)

    def _path(self, variable: Any) -> str:
        """The variable's path in the training, which numbers layers otherwise than this process."""
        of_name = self._captured.paths
        names = (n for n, v in model_variables(self._model).items() if v is variable)
        return next((of_name[n] for n in names if n in of_name), str(variable.path))

    def _load_weights(self) -> None:
        weights = self._captured.weights
        own = {n: v for n, v in model_variables(self._model).items() if n in weights}
        for name, variable in own.items():
            variable.assign(weights[name])
        seeds = {n: v for n, v in own.items() if is_seed(v)}
        if not seeds:
            return
        # They were kept after the step: running a step shows how far it advances them.
        first = self.order[0]
        self.run(self.data(first), self._captured.about.parts[first], watched=False)
        for name, variable in seeds.items():
            after, twice = weights[name], np.asarray(variable.numpy())
            self._before.append((variable, after - (twice - after)))


def is_finite(value: Any) -> bool:
    """Whether every entry is; of `IndexedSlices`, every value."""
    value = value.values if isinstance(value, tf.IndexedSlices) else value
    return bool(np.isfinite(np.asarray(value)).all())
