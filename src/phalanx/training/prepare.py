"""What `fit`, `evaluate` and `predict` do before their first step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from phalanx.callbacks.progress import Progress, is_live
from phalanx.cluster.spec import WorkerSpec
from phalanx.data.batches import BatchSource
from phalanx.data.place import ReplicaPlace, place_in
from phalanx.data.source import global_batches
from phalanx.data.stream import BatchStream
from phalanx.seam.models import adopt, build, strategy_of
from phalanx.seam.optimizers import optimizers_reduce_first
from phalanx.seam.steps import steps_know_their_share
from phalanx.training.agreement import agree
from phalanx.training.exchange import all_gather_rows
from phalanx.training.step import Kind, StepFunction, StepPlan, step_function


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
    """Where a call runs: the model under its strategy, and this process's replicas."""

    model: Any
    strategy: tf.distribute.Strategy
    place: ReplicaPlace


@contextmanager
def on_stage(model: Any) -> Iterator[Stage]:
    """Bring `model` under its strategy, with Keras's steps and optimizers made right."""
    strategy = strategy_of(model)
    with optimizers_reduce_first, steps_know_their_share, strategy.scope():
        adopt(model, strategy)
        yield Stage(model=model, strategy=strategy, place=place_in(strategy))


def open_source(stage: Stage, call: str, seed: int, x: Any, y: Any, **options: Any) -> BatchSource:
    """The global batches of the call, once all workers agree on what it is about.

    Raises:
        DisagreementError: workers were given different data, models or arguments.
        DataError: the data is unfit.
    """
    source = global_batches(x, y, place=stage.place, seed=seed, **options)
    wishes = {
        "call": call,
        "number of samples": source.num_samples,
        "number of batches": source.num_batches,
        "steps": options.get("steps"),
        "kind of data": keras.tree.flatten(source.batch_spec),
        "data": None if source.fingerprint is None else f"checksum {source.fingerprint:08x}",
        "model": [(v.path, tuple(v.shape)) for v in stage.model.trainable_variables],
    }
    agreed = agree(stage.strategy, stage.place, call, wishes, seed)
    if agreed != seed:
        source = global_batches(x, y, place=stage.place, seed=agreed, **options)
    return source


def make_function(stage: Stage, kind: Kind, source: Batches) -> StepFunction:
    """Build what the model builds lazily, then its step function for such batches."""
    if kind != "predict":
        build(stage.model, source.batch_spec, stage.strategy)
    plan = StepPlan(
        strategy=stage.strategy,
        place=stage.place,
        counted=source.counted,
        may_be_empty=source.may_be_empty and stage.place.total > 1,
        known_length=source.num_batches is not None,
    )
    return step_function(stage.model, kind, plan)


def make_stream(stage: Stage, source: BatchSource, steps: int | None) -> BatchStream:
    """The source, to be walked epoch by epoch."""
    chunk = int(stage.model.steps_per_execution or 1)
    return BatchStream(source, steps_per_epoch=steps, steps_per_execution=chunk)


def callback_list(
    stage: Stage,
    callbacks: Any,
    *,
    verbose: int | str,
    epochs: int,
    steps: int | None,
    display: type[Progress],
    add_history: bool = False,
) -> Any:
    """Keras's CallbackList, with one progress display in all: the chief's."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    chosen = list(_as_list(callbacks))
    shown = 1 if verbose == "auto" else int(verbose)
    if shown and stage.place.is_chief:
        live = is_live(sys.stdout, watched=_launcher_is_watched())
        chosen.append(display(verbose=shown, live=live, clock=time.monotonic))
    return keras.callbacks.CallbackList(
        chosen,
        add_history=add_history,
        add_progbar=False,
        model=stage.model,
        verbose=shown,
        epochs=epochs,
        steps=steps,
    )


def on_any_worker(stage: Stage, needs: tuple[bool, bool]) -> tuple[bool, bool]:
    """Of each need, whether some worker has it; a collective that all workers must call."""
    if not stage.place.has_peers:
        return needs
    rows = all_gather_rows(stage.strategy, stage.place, np.array(needs, np.int64))
    first, second = rows.any(axis=0)
    return bool(first), bool(second)


def _as_list(callbacks: Any) -> Iterable[Any]:
    if callbacks is None:
        return []
    return callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]


def _launcher_is_watched() -> bool:
    import os

    spec = WorkerSpec.from_environment(os.environ)
    return spec is not None and spec.interactive
