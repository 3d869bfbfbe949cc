"""What `fit`, `evaluate` and `predict` do before their first step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from phalanx.data.batches import BatchSource
from phalanx.data.pipelines.repair import named_in
from phalanx.data.place import ReplicaPlace, place_in
from phalanx.data.source import global_batches
from phalanx.data.stream import BatchStream
from phalanx.distributed.strategy import MultiWorkerStrategy
from phalanx.errors import OptionError
from phalanx.seam.building_steps import build_by_step
from phalanx.seam.models import (
    adopt,
    build,
    has_own_step,
    replicates_variables,
    strategy_of,
)
from phalanx.seam.optimizers import optimizers_reduce_first
from phalanx.seam.reading import variables_are_numbers
from phalanx.seam.steps import steps_know_their_share
from phalanx.seam.whole_files import saved_files_are_whole
from phalanx.training.advice import advise
from phalanx.training.agreement import agree
from phalanx.training.ends import AgreedEnds, Uneven
from phalanx.training.exchange import all_gather_arrays, all_gather_rows
from phalanx.training.step import Kind, StepFunction, StepPlan, step_function, step_of
from phalanx.training.wishes import Wishes

PATCHES = (
    optimizers_reduce_first,
    steps_know_their_share,
    saved_files_are_whole,
    variables_are_numbers,
)
"""What makes Keras right on several replicas, beside its own methods."""


class Batches(Protocol):
    """What a step function needs to know of its batches; see `BatchSource`."""

    @property
    def batch_spec(self) -> Any:
        """Shapes and dtypes of a global batch."""

    @property
    def counted(self) -> bool:
        """Whether elements are `(total, parts)`."""

    @property
    def may_be_empty(self) -> bool:
        """Whether a replica can be without samples."""

    @property
    def num_batches(self) -> int | None:
        """Global batches in one pass, None when unknown or endless."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Where a call runs: the model under its strategy, and this process's replicas.

    What `exit` is given is taken back where the call ends.
    """

    model: Any
    strategy: tf.distribute.Strategy
    place: ReplicaPlace
    exit: ExitStack


@contextmanager
def on_stage(model: Any) -> Iterator[Stage]:
    """Bring `model` under its strategy, with Keras's steps and optimizers made right."""
    strategy = strategy_of(model)
    with ExitStack() as stack:
        for patches in (*PATCHES, strategy.scope()):
            stack.enter_context(patches)
        adopt(model, strategy)
        place = place_in(strategy)
        if place.has_peers and not isinstance(strategy, MultiWorkerStrategy):
            raise OptionError(
                "Asked to train under TensorFlow's MultiWorkerMirroredStrategy with "
                f"{place.workers} workers; Phalanx trains on several workers under its own. Write "
                'strategy = phalanx.strategy("multiworker"), or start the script by phalanx run.'
            )
        try:
            yield Stage(model=model, strategy=strategy, place=place, exit=stack)
        except Exception as error:
            advise(error)
            if (unfit := named_in(error)) is not None:
                raise unfit from error
            raise


def open_source(
    stage: Stage,
    call: str,
    seed: int | None,
    x: Any,
    y: Any,
    *,
    uneven: Uneven = "error",
    **options: Any,
) -> BatchSource:
    """The global batches of the call, once all workers agree on what it is about.

    Raises:
        DisagreementError: workers were given different data, models or arguments.
        DataError: the data is unfit.
    """
    source = global_batches(x, y, place=stage.place, seed=seed, **options)
    if uneven == "stop":
        _end_with_the_shortest(stage, source)
    wishes = {
        "call": call,
        "number of samples": source.num_samples,
        "number of batches": source.num_batches,
        "knowledge of the data's end": not source.ends_unknown,
        "steps": options.get("steps"),
        "kind of data": keras.tree.flatten(source.batch_spec),
        "data": None if source.fingerprint is None else f"checksum {source.fingerprint:08x}",
        "model": [(v.path, tuple(v.shape)) for v in stage.model.trainable_variables],
    }
    agreed = agree(stage.strategy, stage.place, call, wishes, seed)
    if agreed != seed:
        source = global_batches(x, y, place=stage.place, seed=agreed, **options)
        if uneven == "stop":
            _end_with_the_shortest(stage, source)
    return source


def _end_with_the_shortest(stage: Stage, source: BatchSource) -> None:
    """Let a dataset of known length be as long as the shortest worker's."""
    length = source.num_batches if source.num_samples is None else None
    own = np.array([-1 if length is None else length], np.int64)
    if not stage.place.has_peers:
        return
    lengths = all_gather_rows(stage.strategy, stage.place, own)
    if (lengths >= 0).all():
        source.num_batches = int(lengths.min())


def make_function(
    stage: Stage, kind: Kind, source: Batches, *, built: bool = False
) -> StepFunction:
    """The model's step function for such batches.

    Args:
        stage: where the call runs.
        kind: what the function is for.
        source: the batches.
        built: whether everything that the first step would make must exist now.
    """
    before = getattr(stage.model, f"{kind}_function")
    is_traced = isinstance(before, StepFunction) and before.is_traced
    if kind != "predict" and replicates_variables(stage.strategy) and not is_traced:
        if kind == "train" and has_own_step(stage.model, kind):
            build_by_step(step_of(stage.model, kind), source.batch_spec, stage.strategy)
        else:
            build(stage.model, source.batch_spec, stage.strategy)
        built = False
    plan = StepPlan(
        strategy=stage.strategy,
        place=stage.place,
        counted=source.counted,
        may_be_empty=source.may_be_empty and stage.place.total > 1,
        known_length=source.num_batches is not None,
    )
    function = step_function(stage.model, kind, plan)
    if built and has_own_step(stage.model, kind):
        function.build(source.batch_spec)
    elif built:
        build(stage.model, source.batch_spec, stage.strategy)
    return function


def make_stream(
    stage: Stage, source: BatchSource, steps: int | None, uneven: Uneven = "error"
) -> BatchStream:
    """The source, to be walked epoch by epoch, all workers ending at the same step."""
    chunk = int(stage.model.steps_per_execution or 1)
    stream = BatchStream(source, steps_per_epoch=steps, steps_per_execution=chunk)
    if stage.place.has_peers and source.ends_unknown:
        stream.ready = AgreedEnds(stage.strategy, stage.place, source, uneven)
    return stream


def chiefs_number(stage: Stage, number: int) -> int:
    """The number that the chief gives; a collective that all workers must call."""
    if not stage.place.has_peers:
        return number
    rows = all_gather_rows(stage.strategy, stage.place, np.array([number], np.int64))
    return int(rows[0][0])


def everyones_wishes(stage: Stage, own: Wishes) -> Wishes:
    """What some worker wishes to be read; a collective that all workers must call."""
    of_each = all_gather_arrays(stage.strategy, stage.place, [own.to_array()])
    return Wishes.together([Wishes.from_array(rows) for (rows,) in of_each])
