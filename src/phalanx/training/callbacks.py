"""The callbacks of one call, as they are to run on this worker."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

import keras

from phalanx.callbacks.callback import Callback, DistributedContext
from phalanx.callbacks.fit_protocols import gradient_listener
from phalanx.callbacks.gradient_logger import GradientLogger
from phalanx.callbacks.progress import Progress, is_interactive
from phalanx.cluster.spec import WorkerSpec
from phalanx.distributed.host_collectives import all_gather_arrays
from phalanx.errors import ConfigurationError
from phalanx.keras_compat.callback_adapters import policy_of, redirect_writes
from phalanx.training.callback_sync import CallbackSync
from phalanx.training.context import CallContext
from phalanx.training.log_requirements import shows_progress_itself
from phalanx.training.run_switches import switches


def callback_list(
    stage: CallContext,
    callbacks: Any,
    *,
    verbose: int | str,
    epochs: int,
    steps: int | None,
    display: type[Progress],
    add_history: bool = False,
) -> Any:
    """Keras's CallbackList for this worker, in force until `stage` ends.

    Workers that are not the chief write nothing, there is one progress display in all,
    and what the callbacks decide is decided for all workers.
    """
    shown = 1 if verbose == "auto" else int(verbose)
    given = callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else None
    chosen = _select_callbacks(stage, flat_callbacks(callbacks))
    if given is not None:
        stage.exit.callback(setattr, given, "callbacks", given.callbacks)
        given.callbacks = chosen
        for callback in chosen:
            if isinstance(callback, CallbackSync):
                callback.set_model(stage.model)
        return given
    if shown and stage.topology.is_chief and not any(map(shows_progress_itself, chosen)):
        live = is_interactive(sys.stdout, watched=_launcher_is_watched())
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


def _select_callbacks(stage: CallContext, callbacks: list[Any]) -> list[Any]:
    """Those that run here, each knowing where it is, and last what all decide together."""
    topology = stage.topology
    for callback in callbacks:
        if isinstance(callback, Callback):
            _introduce(stage, callback)
    if switches().trial_batches and topology.is_chief:
        stage.exit.enter_context(redirect_writes(callbacks, saves=True))
    if not topology.has_peers:
        return callbacks
    here = [c for c in callbacks if topology.is_chief or not _is_for_the_chief(c)]
    if not topology.is_chief:
        stage.exit.enter_context(redirect_writes(here))
    return [*here, CallbackSync(stage.strategy, topology, here)]


def _introduce(stage: CallContext, callback: Callback) -> None:
    topology = stage.topology
    if callback.runs_on not in ("all", "chief"):
        raise ConfigurationError(
            f"{type(callback).__name__}.runs_on must be 'all' or 'chief'; found "
            f"{callback.runs_on!r}."
        )
    stage.exit.callback(setattr, callback, "cluster", callback.cluster)
    callback.cluster = DistributedContext(
        rank=topology.rank,
        workers=topology.workers,
        replicas=topology.total,
        gather=partial(all_gather_arrays, stage.strategy, topology),
    )


def _is_for_the_chief(callback: Any) -> bool:
    return policy_of(callback).chief_only or getattr(callback, "runs_on", None) == "chief"


def with_gradient_logger(callbacks: Any) -> Any:
    """The script's callbacks and, with `--log-gradients`, a `GradientLogger` if it has none."""
    if not switches().log_gradients or gradient_listener(flat_callbacks(callbacks)) is not None:
        return callbacks
    logger = GradientLogger(histograms=False)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks = [*callbacks.callbacks, logger]  # It stays for the next fit.
        return callbacks
    return [*flat_callbacks(callbacks), logger]


def flat_callbacks(callbacks: Any) -> list[Any]:
    """What `fit` was given as its callbacks, as a list."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def _launcher_is_watched() -> bool:
    spec = WorkerSpec.from_environment(os.environ)
    return spec is not None and spec.interactive
