"""`phalanx.checkpoint.save` and `restore`: checkpoints of custom training loops, models for use."""

from __future__ import annotations

import builtins
import os
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from threading import Event
from typing import Any
from weakref import WeakKeyDictionary

from phalanx.checkpoint import reader
from phalanx.checkpoint.async_writer import AsyncWriter
from phalanx.checkpoint.history import entries
from phalanx.checkpoint.manifest import Manifest
from phalanx.checkpoint.replica_values import Rows, assign
from phalanx.checkpoint.retention import Retention, prune
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.sharding import describe
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.variable_names import model_variables, optimizer_variables, paths_of
from phalanx.checkpoint.writer import Snapshot
from phalanx.distributed.topology import topology_of
from phalanx.errors import CheckpointError
from phalanx.keras_compat.model_access import steps_trained, strategy_of
from phalanx.training.async_checkpointer import wait_for_all, writer_of
from phalanx.training.context import CallContext

_lineages: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""What the saves of a model follow, as `training.checkpoint_manager.lineage` has it for a `fit`."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a model was restored to.

    Attributes:
        step: training steps done.
        epoch: the epoch under way, or the next where one had just ended.
        metrics: the logs of the epoch that ended there; empty in the middle of one.
        state: what `save` was given.
    """

    step: int
    epoch: int
    metrics: Mapping[str, float]
    state: Mapping[str, Any]


def save(
    model: Any,
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    epoch: int = 0,
    state: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    max_to_keep: int = 3,
    max_retries: int = 5,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Save a model and its optimizer; every worker must call it, and each writes a share.

    `fit` has `phalanx.callbacks.Checkpoint`, which saves more.

    Args:
        model: a built Keras model.
        directory: a path or a URL of fsspec's, the same on every worker.
        step: training steps done; the optimizer's count where None.
        epoch: the epoch under way.
        state: what the loop needs to continue, as JSON knows it; the chief's is written.
        metrics: numbers that measure how good it is.
        max_to_keep: how many of those that were saved last stay, with the one saved now.
        max_retries: how often a write that storage refuses is tried again.
        storage_options: for fsspec's file system.

    Raises:
        CheckpointError: the model is not built, or another worker could not write its share: where
            one fails, all do, and nothing is left of it.
        OSError: storage refused.
    """
    variables = _variables(model, "save") | optimizer_variables(model)
    folder = StorageDir.at(directory, **dict(storage_options or {}))
    with ExitStack() as stack:
        strategy = strategy_of(model)
        stage = CallContext(
            model=model, strategy=strategy, topology=topology_of(strategy), exit=stack
        )
        gives_up = Event()
        writer = replace(
            writer_of(stage, folder, RetryPolicy(max_retries=max_retries)),
            is_given_up=gives_up.is_set,
        )
        snapshot = Snapshot(
            step=steps_trained(model) if step is None else step,
            epoch=epoch,
            arrays={name: Rows(variable) for name, variable in variables.items()},
            state={
                "user": dict(state or {}),
                "paths": paths_of(variables),
                "lineage": _lineages.get(model, {}),
            },
            metrics={name: float(value) for name, value in (metrics or {}).items()},
        )
        share, background = writer.take(snapshot), AsyncWriter()
        background.start(lambda: writer.store(share))
        failed = wait_for_all(stage, background, gives_up)
        is_chief, step = stage.topology.is_chief, snapshot.step
        if failed and is_chief:
            writer.discard(step)
        if failed:
            raise background.take_error() or CheckpointError(
                f"Asked to save step {step} in {folder}; another worker could not write its share. "
                "Its log says why."
            )
        if is_chief:
            with suppress(OSError):  # what is too much now goes with the next
                keeps = Retention(max_to_keep=max_to_keep)
                prune(folder, keeps, saved=step, uncommitted_before=step)


def restore(
    model: Any,
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    optimizer: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Restored:
    """Restore a model from a checkpoint, of `save` or of the `Checkpoint` callback.

    The number of workers does not matter: one device restores what eight have saved. No peer
    is asked.

    Args:
        model: the model, built as it was when it was saved.
        directory: as given to `save` or `Checkpoint`.
        step: which checkpoint; the newest that is complete where None.
        optimizer: whether to restore the optimizer too, where the model is compiled.
        storage_options: for fsspec's file system.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointCorruptedError: the one that was asked for is incomplete.
        CheckpointMismatchError: it is of another model; nothing has changed.
        CheckpointVersionError: a newer Phalanx wrote it.
        CheckpointError: the model is not built.
    """
    variables = _variables(model, "restore")
    folder = StorageDir.at(directory, **dict(storage_options or {}))
    loaded = reader.latest(folder) if step is None else reader.read(folder, step)
    if optimizer and getattr(model, "optimizer", None) is not None:
        if not model.optimizer.built:
            with strategy_of(model).scope():
                model.optimizer.build(model.trainable_variables)
        variables |= optimizer_variables(model)
    described = describe({name: Rows(variable) for name, variable in variables.items()})
    reader.check_compatible(loaded.manifest, described, str(folder), paths=paths_of(variables))
    for name, variable in variables.items():
        assign(variable, loaded.arrays[name])
    manifest = loaded.manifest
    _lineages[model] = {"training": uuid.uuid4().hex[:8], "began_at": manifest.step}
    return Restored(
        step=manifest.step,
        epoch=manifest.epoch,
        metrics=manifest.metrics,
        state=manifest.state.get("user", {}),
    )


def list(  # read as `phalanx.checkpoint.list`
    directory: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> builtins.list[Manifest]:
    """What the checkpoints in a directory hold, by step; damaged manifests are left out."""
    folder = StorageDir.at(directory, **dict(storage_options or {}))
    return [entry.manifest for entry in entries(folder) if entry.manifest is not None]


def verify(
    directory: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> dict[int, str | None]:
    """For each checkpoint, by step, what is wrong with it; None where every byte is right."""
    return dict(reader.verify(StorageDir.at(directory, **dict(storage_options or {}))))


def _variables(model: Any, what: str) -> dict[str, Any]:
    if not model.built:
        raise CheckpointError(
            f"Asked to {what} the model {model.name!r}, which is not built and has no weights yet. "
            "Give it an Input, call it on a batch, or call model.build(shape) first."
        )
    return model_variables(model)
