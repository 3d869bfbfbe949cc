"""What Keras saves is complete or absent: written under a temporary name, then renamed.

`Model.save` and `Model.save_weights` write to a name next to the one asked for and take
that one's place at the end, so a reader never sees half a file, a broken run leaves the
older one, and several processes that save the same model to one path leave a whole file.

Private names used: `keras.src.callbacks.backup_and_restore.file_utils` and
`keras.src.callbacks.tensorboard.file_utils` (small files that these callbacks write).
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras

from phalanx.keras_compat.patches import Patches
from phalanx.monitoring.durable_files import move_durably
from phalanx.monitoring.save_tracker import saving

_asides: set[Path] = set()


@contextmanager
def atomic_path(path: str) -> Iterator[str]:
    """A name to write to, next to `path` and with its endings, which then takes its place."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{uuid.uuid4().hex[:8]}-{name}")
    try:
        yield temporary
        move_durably(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


@contextmanager
def discard_saves_under(directory: Path) -> Iterator[None]:
    """Let models saved below `directory` not be written, unless all workers must read them."""
    _asides.add(directory)
    try:
        yield
    finally:
        _asides.discard(directory)


def reading_takes_all_workers(model: Any) -> bool:
    """Whether a value of the model's is spread over the workers, who must read it together."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
    metrics = {id(v) for metric in model.metrics for v in metric.variables}
    return any(
        getattr(v, "synchronization", None) == "on_read" and id(v) not in metrics for v in variables
    )


def _replacements() -> Mapping[tuple[Any, str], Any]:
    found: dict[tuple[Any, str], Any] = {
        (keras.Model, "save"): _saving_whole(keras.Model.save),
        (keras.Model, "save_weights"): _saving_whole(keras.Model.save_weights),
    }
    for name in ("backup_and_restore", "tensorboard"):
        module = importlib.import_module(f"keras.src.callbacks.{name}")
        found[(module, "file_utils")] = _AtomicFileSystem(module.file_utils)
    return found


def _saving_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(model: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        path = str(filepath)
        if _is_scratch(path) and not reading_takes_all_workers(model):
            return None
        with saving(path):
            if not _is_one_new_file(path, overwrite, [*args, *kwargs.values()]):
                return original(model, filepath, overwrite, *args, **kwargs)
            with atomic_path(path) as temporary:
                return original(model, temporary, True, *args, **kwargs)

    return save


def _is_scratch(path: str) -> bool:
    parents = Path(path).absolute().parents
    return any(aside in parents for aside in _asides)


def _is_one_new_file(path: str, overwrite: bool, options: list[Any]) -> bool:
    """Whether saving makes one local file, without asking; else Keras does as it does."""
    plain = all(option is None or option is True for option in options)
    local = "://" not in path and path.endswith((".keras", ".h5"))
    return plain and local and (overwrite or not os.path.exists(path))


class _AtomicFileSystem:
    """Keras's `file_utils`, with files that are complete or absent."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def File(self, path: Any, mode: str = "r") -> Any:  # noqa: N802  # Keras's name
        """Open a file, as Keras does."""
        local = "://" not in str(path)
        return _written_whole(path) if mode == "w" and local else self._original.File(path, mode)

    def copy(self, source: Any, target: Any) -> None:
        """Copy a file, as Keras does."""
        if "://" in f"{source}{target}":
            self._original.copy(source, target)
            return
        with atomic_path(str(target)) as temporary:
            shutil.copy(source, temporary)


@contextmanager
def _written_whole(path: Any) -> Iterator[Any]:
    with atomic_path(str(path)) as temporary, open(temporary, "w") as stream:
        yield stream


atomic_save_patch = Patches(_replacements)
"""Enter it, and what Keras saves is complete or absent; leave it, and Keras is as it was."""
