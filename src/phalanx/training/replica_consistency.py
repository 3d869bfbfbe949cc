"""Do all replicas hold the same? `fit` asks when it begins, now and then, and at its end."""

from __future__ import annotations

import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.callbacks.replica_check import ReplicaConsistencyCheck
from phalanx.checkpoint.checksum import checksum_components, combine_checksums
from phalanx.checkpoint.replica_values import replica_components
from phalanx.checkpoint.variable_names import model_variables, optimizer_variables
from phalanx.distributed.host_collectives import all_gather_arrays, all_gather_rows
from phalanx.errors import WorkerMismatchError
from phalanx.gradients.replica_batch import is_seed
from phalanx.keras_compat.optimizer_clippers import local_clipper_state
from phalanx.training.context import CallContext
from phalanx.training.overhead_budget import OverheadBudget
from phalanx.training.step_function import StepFunction

_log = logging.getLogger(__name__)
_MOST_COMPARED = 16
_MOST_ENTRIES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Unlike:
    """A variable of which replicas hold different copies.

    Attributes:
        name: its path.
        odd: the replicas that are not like the others.
        reference: one of the others.
        by: how the first of the odd ones differs from that one.
        count: how many variables differ.
        of: how many there are.
    """

    name: str
    odd: tuple[int, ...]
    reference: int
    by: VariableDifference
    count: int
    of: int

    def in_words(self, noun: str) -> str:
        """All of it, where a replica is called `noun`."""
        who = f"{noun} {', '.join(map(str, self.odd))}"
        index = f"[{', '.join(map(str, self.by.index))}]" if self.by.index else "it"
        one, other = self.by.values
        return (
            f"{self.name} on {who} is not that of {noun} {self.reference}, by "
            f"{self.by.largest:.3g} at "
            f"most ({index} is {other:.6g} there, {one:.6g} on {noun} {self.reference}), in "
            f"{self.by.entries} of {self.by.size} entries; {self.count} of {self.of} variables "
            "differ."
        )


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """That workers have different numbers of variables: of each its number, by rank."""

    counts: tuple[int, ...]

    def in_words(self, noun: str) -> str:
        """All of it; it is workers that lack variables, whatever a replica is called."""
        shown = ", ".join(f"worker {rank}: {count}" for rank, count in enumerate(self.counts))
        return f"they have different numbers of variables ({shown})."


@dataclass(frozen=True, kw_only=True)
class Apart:
    """That replicas differ; `str` of it says so.

    Attributes:
        what: in which variable, or in how many there are.
        step: so many were trained.
        first_difference_at: the last step at which they were equal; None if they never were.
        noun: what a replica is called: "worker" where each has one.
    """

    what: Unlike | Lacking
    step: int
    first_difference_at: int | None
    noun: str

    def __str__(self) -> str:
        since = (
            ""
            if self.first_difference_at is None
            else f" They were equal at step {self.first_difference_at}."
        )
        when = (
            "when training begins"
            if self.first_difference_at is None
            else f"after step {self.step}"
        )
        return (
            f"Replicas that should hold the same differ {when}: {self.what.in_words(self.noun)}"
            f"{since} Look for what one worker does alone: an assignment, a file it loads, a "
            'callback. ReplicaConsistencyCheck(on_difference="raise") ends such a training.'
        )


class _TracedChecksums:
    """The checksums of a model's variables in one graph, which later calls of `fit` use too."""

    def __init__(self) -> None:
        self._of: list[int] = []
        self._function: Any = None

    @property
    def is_traced(self) -> bool:
        """Whether there is a graph."""
        return self._function is not None

    def __call__(self, variables: Sequence[Any]) -> tf.Tensor:
        if self._of != (found := [id(v) for v in variables]):
            self._function = tf.function(lambda: checksum_components(variables), autograph=False)
            self._of = found
        return self._function()


class ReplicaChecks:
    """The comparisons of one `fit`; every worker has one, and all compare at the same steps."""

    def __init__(
        self,
        stage: CallContext,
        function: StepFunction,
        options: ReplicaConsistencyCheck,
        *,
        own: Iterable[Any] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is compared yet; `own` are variables that each worker has of its own."""
        self._own = {id(v) for v in own}
        self._stage = stage
        self._function = function
        self._options = options
        self._clock = clock
        self._is_on = stage.topology.total > 1
        self._sampling = OverheadBudget(every=1, max_overhead=None, clock=clock)
        self._fold = function.extensions.setdefault(_TracedChecksums, _TracedChecksums())
        self._identical_at: int | None = None
        self._has_warned = False
        self._inspected = 0

    def begin(self, step: int, *, is_resumed: bool) -> None:
        """Agree on when to compare, and compare; all workers must call it.

        Raises:
            WorkerMismatchError: replicas begin with different weights, and that is to end it.
        """
        if not self._is_on:
            return
        options = self._options
        share = -1.0 if options.max_overhead is None else options.max_overhead
        own = [options.every_steps or 0, options.on_difference == "raise"]
        numbers = np.array([share, options.tolerance], np.float64).view(np.int64)
        every, raises, *chiefs = (int(n) for n in self._rows([*own, *numbers])[0])
        share, self._tolerance = (float(n) for n in np.array(chiefs, np.int64).view(np.float64))
        self._raises, self._is_on = bool(raises), every > 0
        if not self._is_on:
            return
        self._sampling = OverheadBudget(
            every=every, max_overhead=None if share < 0 else share or 1e-9, clock=self._clock
        )
        self._compare(step, is_resumed=is_resumed, fold=checksum_components)
        self._sampling.record(step, self._clock(), float(every))

    def after(self, step: int) -> None:
        """So many steps are trained: compare, if it is time.

        Raises:
            WorkerMismatchError: replicas differ, and that is to end the training.
        """
        if not self._is_on or not self._sampling.is_due(step):
            return
        started, traced = self._clock(), not self._fold.is_traced
        interval = self._compare(step, fold=self._fold)
        self._sampling.record(step, started, interval, traced=traced)

    def end(self, step: int) -> None:
        """Training has come to its end: compare once more."""
        if self._is_on and self._identical_at != step:
            self._compare(step, fold=self._fold if self._fold.is_traced else checksum_components)

    def _compare(
        self, step: int, *, fold: Callable[[Sequence[Any]], Any], is_resumed: bool = False
    ) -> float:
        model = self._stage.model
        variables = compared_variables(model, self._function, is_resumed=is_resumed)
        variables = [v for v in variables if id(v) not in self._own]
        folded = fold(variables).numpy()
        # A variable that some worker lacks would make the rows of the next exchange unequal.
        row = [int(self._sampling.proposal), len(variables), *combine_checksums(folded)]
        rows = self._rows(row)
        totals = rows[:, 2:].reshape(-1)
        if (rows[:, 1] != rows[0, 1]).any():
            self._differ(step, Lacking(counts=tuple(int(n) for n in rows[:, 1])))
        elif (totals != totals[0]).any():
            self._locate_difference(step, variables, folded)
        else:
            self._identical_at = step
        return float(rows[0, 0])

    def _locate_difference(self, step: int, variables: Sequence[Any], folded: np.ndarray) -> None:
        """Find the first variable that differs by more than rounding, among some."""
        everyones = self._rows(folded.reshape(-1).tolist()).reshape(-1, len(variables))
        unlike = np.flatnonzero((everyones != everyones[0]).any(axis=0))
        if len(unlike) > _MOST_COMPARED:  # each look resumes where the one before has ended
            unlike = np.roll(unlike, -self._inspected)
            self._inspected += _MOST_COMPARED
        for column in unlike[:_MOST_COMPARED]:
            odd = _outliers(everyones[:, column].tolist())
            reference = next(r for r in range(len(everyones)) if r not in odd)
            found = self._difference(variables[column], reference, odd[0])
            if found.share > self._tolerance:
                name = str(getattr(variables[column], "path", variables[column].name))
                what = Unlike(
                    name=name,
                    odd=tuple(odd),
                    reference=reference,
                    by=found,
                    count=len(unlike),
                    of=len(variables),
                )
                self._differ(step, what)
                return
        if not self._has_warned and self._stage.topology.is_chief:
            _log.info(
                "step %d: replicas differ in %d variables, by rounding; that happens where "
                "workers have unlike processors, and on GPUs, which add up rows in any order",
                step,
                len(unlike),
            )
        self._has_warned = True

    def _difference(self, variable: Any, one: int, other: int) -> VariableDifference:
        """How two replicas' copies differ, in the first million entries that do."""
        copies = [np.asarray(copy.numpy()).reshape(-1) for copy in replica_components(variable)]
        sums = np.stack([_sums_of_chunks(copy) for copy in copies])
        of_all = np.concatenate([s for (s,) in self._arrays([sums])])
        of_all = of_all if len(of_all) > 1 else np.repeat(of_all, 2, axis=0)
        chunk = int(np.flatnonzero(of_all[one] != of_all[other])[0])
        begin = chunk * _MOST_ENTRIES
        parts = np.stack([copy[begin : begin + _MOST_ENTRIES] for copy in copies])
        of_all_parts = np.concatenate([p for (p,) in self._arrays([parts])])
        found = difference(of_all_parts[one], of_all_parts[other])
        shape = tuple(variable.shape)
        at = np.unravel_index(begin + found.index[0], shape or (1,))
        index = tuple(int(i) for i in at) if shape else ()
        return VariableDifference(**{**vars(found), "index": index, "size": copies[0].size})

    def _differ(self, step: int, what: Unlike | Lacking) -> None:
        self._is_on = False
        noun = "worker" if self._stage.topology.local == 1 else "replica"
        apart = Apart(what=what, step=step, first_difference_at=self._identical_at, noun=noun)
        if self._raises:
            raise WorkerMismatchError(str(apart))
        if self._stage.topology.is_chief:
            _log.warning("%s", apart)

    def _rows(self, row: Sequence[Any]) -> Any:
        own = np.array(row, np.int64)
        topology = self._stage.topology
        if not topology.has_peers:
            return own[None]
        return all_gather_rows(self._stage.strategy, topology, own)

    def _arrays(self, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        return all_gather_arrays(self._stage.strategy, self._stage.topology, arrays)


def _sums_of_chunks(flat: np.ndarray) -> np.ndarray:
    """A number for each million entries that is equal where these are."""
    chunks = [flat[i : i + _MOST_ENTRIES].tobytes() for i in range(0, flat.size, _MOST_ENTRIES)]
    return np.array([zlib.crc32(chunk) for chunk in chunks], np.int64)


def _outliers(values: Sequence[int]) -> list[int]:
    """The replicas that most others, else the first, are not like."""
    counts = Counter(values)
    usual = max(counts, key=lambda value: (counts[value], value == values[0]))
    return [replica for replica, value in enumerate(values) if value != usual]


def compared_variables(model: Any, function: StepFunction, *, is_resumed: bool) -> list[Any]:
    """The variables that every replica holds with equal values.

    Left out are metrics, what replicas assign on their own in a step, and what clippers remember
    of a replica's own gradient.

    Args:
        model: the model, built.
        function: its training steps, which know what they assign once they have run.
        is_resumed: whether what replicas assign on their own was restored and no step has
            run yet: then nothing says which variables these are.
    """
    optimizer = getattr(model, "optimizer", None)
    apart = {id(v) for metric in model.metrics for v in metric.variables}
    apart |= {id(v) for v in local_clipper_state(optimizer)}
    apart |= function.assigned.keys()
    weights = list(model_variables(model).values())
    chosen = []
    for variable in {id(v): v for v in weights}.values():
        is_own = id(variable) in apart or variable.aggregation in ("mean", "sum")
        is_own = is_own or (is_resumed and not variable.trainable)
        if not is_own or is_seed(variable) or id(variable) in function.invariant:
            chosen.append(variable)
    chosen += [v for v in optimizer_variables(model).values() if id(v) not in apart]
    return [v for v in chosen if str(v.dtype) != "string"]


@dataclass(frozen=True, kw_only=True)
class VariableDifference:
    """How two copies of a variable differ.

    Attributes:
        largest: the largest difference of two entries; infinite where one is not finite.
        share: that as a share of the largest entry.
        entries: how many entries differ.
        size: how many there are.
        index: where the largest difference is.
        values: the two entries there.
    """

    largest: float
    share: float
    entries: int
    size: int
    index: tuple[int, ...]
    values: tuple[float, float]


def difference(one: np.ndarray, other: np.ndarray) -> VariableDifference:
    """How `other` differs from `one`, an array of the same shape and dtype."""
    first, second = (np.atleast_1d(a).astype(np.float64) for a in (one, other))
    unlike = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    with np.errstate(invalid="ignore"):
        gap = np.where(unlike, np.abs(first - second), 0.0)
    gap = np.where(np.isnan(gap), np.inf, gap)
    at = np.unravel_index(int(gap.argmax()), gap.shape)
    scale = max(float(np.nanmax(np.abs(first), initial=0.0)), float(np.finfo(np.float32).tiny))
    return VariableDifference(
        largest=float(gap[at]),
        share=float(gap[at]) / scale,
        entries=int(unlike.sum()),
        size=first.size,
        index=tuple(int(i) for i in at),
        values=(float(first[at]), float(second[at])),
    )
