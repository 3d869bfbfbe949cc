"""Checkpoints, exported models and summaries of TensorFlow's are written by the chief alone.

The workers of an unchanged script all write to one path: `tf.train.Checkpoint.save` and `write`,
`tf.train.CheckpointManager.save`, `tf.saved_model.save`, `Model.export` and
`tf.summary.create_file_writer`. The chief does; a call returns on every worker when all is there.
A path on `ram://` is in the memory of one process, so each worker writes its own.

Private names used: `tf.train.Checkpoint._write`, by which `save`, `write` and
`CheckpointManager.save` write; of `tensorflow.python.checkpoint.checkpoint_management`
`update_checkpoint_state_internal` and `_delete_file_if_exists`, by which `CheckpointManager`
touches files next to those of a checkpoint, and of `tensorflow.python.checkpoint.checkpoint`
`_execute_callbacks`.
"""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from phalanx.keras_compat.patches import Patches
from phalanx.launcher.scratch import scratch_prefix
from phalanx.monitoring.save_tracker import saving
from phalanx.worker.written_once import write_once

_MEMORY = "ram://"
"""TensorFlow's file system in the memory of a process."""

_thread = threading.local()


def _replacements() -> Mapping[tuple[Any, str], Any]:
    management = importlib.import_module("tensorflow.python.checkpoint.checkpoint_management")
    return {
        (tf.train.Checkpoint, "_write"): _checkpoint_once(tf.train.Checkpoint._write),
        **{
            (management, name): _unless_the_chief_has(getattr(management, name))
            for name in ("update_checkpoint_state_internal", "_delete_file_if_exists")
        },
        (keras.Model, "export"): _export_once(keras.Model.export),
        **_everywhere("saved_model", "save", _saved_model_once),
        **_everywhere("summary", "create_file_writer", _summaries_once),
    }


def _everywhere(module: str, name: str, once: Callable[..., Any]) -> dict[tuple[Any, str], Any]:
    """A replacement of `tf.<module>.<name>`, in each of the modules that go by that name.

    `import tensorflow.<module>`, which `Model.export` does in passing, makes one more, and
    it takes the name's place in `tf`.
    """
    homes = [getattr(root, module) for root in (tf, tf.compat.v2)]
    homes.append(importlib.import_module(f"tensorflow.{module}"))
    return {(home, name): once(getattr(home, name)) for home in homes}


def _checkpoint_once(original: Callable[..., Any]) -> Callable[..., Any]:
    execute = importlib.import_module("tensorflow.python.checkpoint.checkpoint")._execute_callbacks

    @functools.wraps(original)
    def _write(checkpoint: Any, file_prefix: Any, options: Any = None) -> Any:
        later = options is not None and options.experimental_enable_async_checkpoint
        if later or not tf.executing_eagerly():  # it comes here again, from its thread
            return original(checkpoint, file_prefix, options)
        prefix: str = os.fspath(file_prefix)

        def instead() -> str:
            if options is not None and options.experimental_write_callbacks:
                with _files_are_the_chiefs():
                    execute(options.experimental_write_callbacks, prefix)
            return prefix

        return _once("checkpoint", prefix, lambda: original(checkpoint, prefix, options), instead)

    return _write


@contextmanager
def _files_are_the_chiefs() -> Iterator[None]:
    """Let a `CheckpointManager` note in the block what the chief's has done, and do no more."""
    _thread.chief_has = True
    try:
        yield
    finally:
        _thread.chief_has = False


def _unless_the_chief_has(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def touch(*args: Any, **kwargs: Any) -> None:
        if not getattr(_thread, "chief_has", False):
            original(*args, **kwargs)

    return touch


def _saved_model_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(export_dir)
        return _once("saved model", path, lambda: original(obj, export_dir, *args, **kwargs))

    return save


def _export_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def export(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(filepath)
        return _once("saved model", path, lambda: original(model, filepath, *args, **kwargs))

    return export


def _once(
    kind: str, path: str, write: Callable[[], Any], instead: Callable[[], Any] = lambda: None
) -> Any:
    if path.startswith(_MEMORY):
        return write()
    with saving(path):
        return write_once(kind, path, write, instead)


def _summaries_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_file_writer(logdir: Any, *args: Any, **kwargs: Any) -> Any:
        def create() -> Any:
            return original(logdir, *args, **kwargs)

        if not isinstance(logdir, str | os.PathLike) or _is_own(os.fspath(logdir)):
            return create()
        instead = tf.summary.create_noop_writer
        return write_once("summaries", os.fspath(logdir), create, instead)

    return create_file_writer


def _is_own(path: str) -> bool:
    """Whether the path is this process's own: in its memory, or a callback's scratch directory."""
    scratch = os.path.join(tempfile.gettempdir(), scratch_prefix(os.getpid()))
    return path.startswith((_MEMORY, scratch))


written_once = Patches(_replacements)
"""Enter it, and the chief writes what all workers would; leave it, and each does for itself."""
