"""Keras's callbacks, each with what it needs to be right on several workers.

Where two workers would write the same file, the chief writes it: the callbacks of all
others work in a directory of their own that is thrown away, so that their state and their
decisions go along. A new callback is one more line in `CALLBACK_POLICIES`.

Private names used: `BackupAndRestore._weights_path`, `._training_metadata_path` and their
`_prev` twins, `TensorBoard._should_trace`, `._is_tracing` and `._profiler_started`, and the
counters of batches of `ModelCheckpoint`, `BackupAndRestore` and `OrbaxCheckpoint`
(`_batches_seen_since_last_saving`).
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from phalanx.keras_compat.atomic_writes import atomic_path, discard_saves_under
from phalanx.launcher.scratch import scratch_prefix


@dataclass(frozen=True, kw_only=True)
class LogSchedule:
    """A request for fresh logs at every `steps`-th batch, counted over all epochs.

    Attributes:
        steps: batches, or calls of the batch hooks, from one reading to the next.
        already: how many had passed before the training began.
        calls: whether calls of the hooks count, which differ from batches under
            `steps_per_execution`.
    """

    steps: int
    already: int = 0
    calls: bool = False


@dataclass(frozen=True, kw_only=True)
class CallbackPolicy:
    """How the callbacks of one class are right on several workers.

    Attributes:
        scratch_overrides: attributes for the callback of a worker that is not the chief, by name,
            made for a directory of its own.
        chief_only: whether its hooks run on the chief alone.
        reads: at which batches it wants fresh logs; None takes this from its code.
        restores: whether it has a state that it restores when training begins.
        shows_progress: whether it is a progress display.
        acts_on_epochs_only: whether its batch hooks do nothing, as it is configured.
        of_process: attributes for what it has under way, which a fresh process has not.
    """

    scratch_overrides: Callable[[Any, Path], Mapping[str, Any]] = lambda callback, directory: {}
    chief_only: bool = False
    reads: Callable[[Any], Sequence[LogSchedule]] | None = None
    restores: Callable[[Any], bool] = lambda callback: False
    shows_progress: bool = False
    acts_on_epochs_only: Callable[[Any], bool] = lambda callback: False
    of_process: frozenset[str] = frozenset()


def policy_of(callback: Any) -> CallbackPolicy:
    """The manner of the callback's class, or of the one it derives from."""
    return next(
        (m for kind, m in CALLBACK_POLICIES if isinstance(callback, kind)), CallbackPolicy()
    )


def has_restored(callback: Any) -> bool:
    """Whether the callback has restored a state when training began."""
    return policy_of(callback).restores(callback)


@contextmanager
def redirect_writes(callbacks: Sequence[Any], *, saves: bool = False) -> Iterator[None]:
    """Let these callbacks write nothing where the user asked them to; for all but the chief.

    Args:
        callbacks: those.
        saves: whether models are written there after all, in a directory that is removed.
    """
    if not any(isinstance(c, kind) for c in callbacks for kind, _ in CALLBACK_POLICIES):
        yield
        return
    directory = Path(tempfile.mkdtemp(prefix=scratch_prefix(os.getpid())))
    before: list[tuple[Any, str, Any]] = []
    try:
        with nullcontext() if saves else discard_saves_under(directory):
            for i, callback in enumerate(callbacks):
                own = directory / str(i)
                own.mkdir()
                for name, value in policy_of(callback).scratch_overrides(callback, own).items():
                    before.append((callback, name, getattr(callback, name)))
                    setattr(callback, name, value)
            yield
    finally:
        for callback, name, value in reversed(before):
            setattr(callback, name, value)
        shutil.rmtree(directory, ignore_errors=True)


def _quiet(callback: Any, directory: Path) -> dict[str, Any]:
    return {"verbose": 0}


def _checkpoint(callback: Any, directory: Path) -> dict[str, Any]:
    return {"filepath": _moved(callback.filepath, directory), "verbose": 0}


def _backup(callback: Any, directory: Path) -> dict[str, Any]:
    names = ["_weights_path", "_training_metadata_path"]
    names += [f"_prev{name}" for name in names]
    moved = {name: _moved(getattr(callback, name), directory) for name in names}
    return {"backup_dir": str(directory), **moved}


def _has_backup(callback: Any) -> bool:
    return bool(tf.io.gfile.exists(callback._weights_path))


def _tensorboard(callback: Any, directory: Path) -> dict[str, Any]:
    (directory / "train").mkdir()
    return {"log_dir": str(directory), "_should_trace": False}


def _csv(callback: Any, directory: Path) -> dict[str, Any]:
    return {"filename": _moved(callback.filename, directory)}


def _orbax(callback: Any, directory: Path) -> dict[str, Any]:
    return {"checkpointer": _NullCheckpointer(), "verbose": 0}


class _NullCheckpointer:
    """A stand-in for an Orbax `Checkpointer`: any call succeeds at once."""

    def __getattr__(self, name: str) -> Callable[..., _NullCheckpointer]:
        return lambda *_, **__: self


def _moved(path: Any, directory: Path) -> str:
    return str(directory / os.path.basename(str(path)))


def _saves_every(callback: Any) -> list[LogSchedule]:
    if not isinstance(callback.save_freq, int) or callback.save_freq < 1:
        return []
    return [LogSchedule(steps=callback.save_freq, already=callback._batches_seen_since_last_saving)]


def _writes_every(callback: Any) -> list[LogSchedule]:
    if not isinstance(callback.update_freq, int) or callback.update_freq < 1:
        return []
    return [LogSchedule(steps=callback.update_freq, calls=True)]


def _never(callback: Any) -> list[LogSchedule]:
    return []


def _saves_epochs(callback: Any) -> bool:
    return bool(callback.save_freq == "epoch")


def _writes_epochs(callback: Any) -> bool:
    # Keras keeps `profile_batch` nowhere; without the name, a profile is assumed.
    per_batch = callback.write_steps_per_second or getattr(callback, "_should_trace", True)
    return callback.update_freq == "epoch" and not per_batch


_CALLBACKS = keras.callbacks

CALLBACK_POLICIES: list[tuple[Any, CallbackPolicy]] = [
    (
        _CALLBACKS.ModelCheckpoint,
        CallbackPolicy(
            scratch_overrides=_checkpoint, reads=_saves_every, acts_on_epochs_only=_saves_epochs
        ),
    ),
    (
        _CALLBACKS.BackupAndRestore,
        CallbackPolicy(
            scratch_overrides=_backup,
            reads=_never,
            restores=_has_backup,
            acts_on_epochs_only=_saves_epochs,
        ),
    ),
    (
        _CALLBACKS.TensorBoard,
        CallbackPolicy(
            scratch_overrides=_tensorboard,
            reads=_writes_every,
            acts_on_epochs_only=_writes_epochs,
            of_process=frozenset({"_is_tracing", "_profiler_started"}),
        ),
    ),
    (_CALLBACKS.CSVLogger, CallbackPolicy(scratch_overrides=_csv)),
    (_CALLBACKS.RemoteMonitor, CallbackPolicy(chief_only=True)),
    (_CALLBACKS.ProgbarLogger, CallbackPolicy(chief_only=True, reads=_never, shows_progress=True)),
    (_CALLBACKS.EarlyStopping, CallbackPolicy(scratch_overrides=_quiet)),
    (_CALLBACKS.ReduceLROnPlateau, CallbackPolicy(scratch_overrides=_quiet)),
    (_CALLBACKS.LearningRateScheduler, CallbackPolicy(scratch_overrides=_quiet)),
]

if hasattr(_CALLBACKS, "OrbaxCheckpoint"):  # Keras 3.13 has none
    _ORBAX = CallbackPolicy(
        scratch_overrides=_orbax, reads=_saves_every, acts_on_epochs_only=_saves_epochs
    )
    CALLBACK_POLICIES.append((_CALLBACKS.OrbaxCheckpoint, _ORBAX))


# `CSVLogger` starts a new file at each `fit`, or with `append=True` adds to it; neither is
# right after a restart, where the epochs before stay and those to be trained again go.


def truncate_after(callback: Any, epoch: float) -> None:
    """Keep the lines of the epochs before `epoch`, and have the callback add to them."""
    if not isinstance(callback, keras.callbacks.CSVLogger):
        return
    if not tf.io.gfile.exists(callback.filename):
        return
    with tf.io.gfile.GFile(callback.filename) as stream:
        lines = list(csv.reader(io.StringIO(stream.read()), delimiter=callback.sep))
    kept = io.StringIO()
    writer = csv.writer(kept, delimiter=callback.sep, lineterminator="\n")
    writer.writerows(line for i, line in enumerate(lines) if i == 0 or _epoch_of(line) < epoch)
    path = str(callback.filename)  # where it is uploaded, it is whole or absent
    whole = nullcontext(path) if "://" in path else atomic_path(path)
    with whole as target, tf.io.gfile.GFile(target, "w") as stream:
        stream.write(kept.getvalue())
    callback.append = True


def _epoch_of(line: list[str]) -> int:
    try:
        return int(line[0])
    except (IndexError, ValueError):
        return 0  # not a line of Keras's: not ours to remove
