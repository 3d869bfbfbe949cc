"""Run a kept step again, eagerly and watched, from the state that it began in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.debug.trace import Call, Trace
from phalanx.gradients.share import is_seed
from phalanx.seam.models import set_loss_scale
from phalanx.seam.probes import draws_of, gradients_of, in_float32, looking_into
from phalanx.seam.random_draws import ReplicaRows
from phalanx.state.captured import Captured, Part
from phalanx.state.naming import model_variables


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
        return not self.bad_variables and not any(call.bad_rows is not None for call in self.calls)

    @property
    def calls(self) -> Sequence[Call]:
        """The calls of layers and losses."""
        return self.trace.calls


class StepAgain:
    """A model as it was before a step, and the step's data."""

    def __init__(self, model: Any, captured: Captured) -> None:
        """Bring the weights into `model`, which is compiled, and built by this if need be."""
        self._model = model
        self._captured = captured
        self._before: list[tuple[Any, np.ndarray]] = []
        held = [i for i, part in enumerate(captured.about.parts) if part.count]
        self.order = sorted(held, key=lambda i: not captured.about.parts[i].is_bad)
        x, *_ = self.data(self.order[0])
        model(tf.nest.map_structure(lambda a: a[:1], x))
        set_loss_scale(model, captured.about.loss_scale)
        self._bring_weights()

    def data(self, i: int) -> tuple[Any, ...]:
        """The samples of a part, without a row that only stands in."""
        count = self._captured.about.parts[i].count
        cut = tf.nest.map_structure(
            lambda a: None if a is None else a[:count], self._captured.batches[i]
        )
        return tuple(cut)

    def run(self, data: Any, part: Part, *, first: int = 0, watched: bool = True) -> Run:
        """One step on `data`, samples of `part` from its `first` on; it changes no weight."""
        trace = Trace()
        tensors = tf.nest.map_structure(lambda a: None if a is None else tf.constant(a), data)
        with ExitStack() as stack:
            stack.enter_context(draws_of(self._rows(data, part, first)))
            caught = stack.enter_context(gradients_of(self._model.optimizer))
            stack.enter_context(looking_into(trace) if watched else nullcontext())
            for variable, before in self._before:
                variable.assign(before)
            self._model.train_step(tensors)
        bad = [v for g, v in caught if g is not None and not is_finite(g)]
        return Run(trace=trace, bad_variables=tuple(self._path(v) for v in bad))

    def _rows(self, data: Any, part: Part, first: int) -> ReplicaRows:
        count = len(next(a for a in tf.nest.flatten(data) if a is not None))
        return ReplicaRows(
            start=part.start + first,
            count=count,
            total=self._captured.about.total,
            static_count=count,
            replica=part.replica,
        )

    def run_in_float32(self, data: Any, part: Part) -> Run:
        """The same with every layer computing in float32."""
        with in_float32(self._model):
            return self.run(data, part)

    def _path(self, variable: Any) -> str:
        """The variable's path in the training, which numbers layers otherwise than this process."""
        of_name = self._captured.paths
        names = (n for n, v in model_variables(self._model).items() if v is variable)
        return next((of_name[n] for n in names if n in of_name), str(variable.path))

    def _bring_weights(self) -> None:
        weights = self._captured.weights
        own = {n: v for n, v in model_variables(self._model).items() if n in weights}
        for name, variable in own.items():
            variable.assign(weights[name])
        seeds = {n: v for n, v in own.items() if is_seed(v)}
        if not seeds:
            return
        # They were kept after the step: how far a step takes them, a step tells.
        first = self.order[0]
        self.run(self.data(first), self._captured.about.parts[first], watched=False)
        for name, variable in seeds.items():
            after, twice = weights[name], np.asarray(variable.numpy())
            self._before.append((variable, after - (twice - after)))


def is_finite(value: Any) -> bool:
    """Whether every entry is; of `IndexedSlices`, every value."""
    value = value.values if isinstance(value, tf.IndexedSlices) else value
    return bool(np.isfinite(np.asarray(value)).all())
