"""`keras.utils.get_file` by several workers: one of a host downloads and extracts, for all.

A lock file next to what was downloaded is held meanwhile, by one worker of all that see that
directory; the kernel lets it go where its holder is killed. The others find a note of what was done
in this attempt, and take that. There is no collective: a worker may call it alone.

A download has a temporary name until it is complete, so one that was interrupted
is not taken for the file.

Private names used: `keras.src.utils.file_utils.urlretrieve`, by which `get_file` downloads, and
`keras.src.backend.config.keras_home`.
"""

from __future__ import annotations

import functools
import getpass
import importlib
import inspect
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import keras
from filelock import FileLock

from phalanx.cluster.spec import WorkerSpec
from phalanx.keras_compat.atomic_writes import atomic_path
from phalanx.keras_compat.patches import Patches

_FOLDER = ".phalanx"
_calls: Counter[tuple[str, str]] = Counter()


def _replacements() -> Mapping[tuple[Any, str], Any]:
    files = importlib.import_module("keras.src.utils.file_utils")
    original = keras.utils.get_file
    in_turn = _in_turn(original)
    # Keras's own modules, such as its datasets, have each taken the function by its name.
    homes = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "keras"]
    return {
        **{(m, "get_file"): in_turn for m in homes if vars(m).get("get_file") is original},
        (files, "urlretrieve"): _retrieving_whole(files.urlretrieve),
    }


def _in_turn(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def get_file(*args: Any, **kwargs: Any) -> Any:
        spec = WorkerSpec.from_environment(os.environ)
        if spec is None or spec.run_dir is None or spec.world_size == 1 or spec.servers:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        argument_texts = {name: str(value) for name, value in bound.arguments.items()}
        attempt = f"{spec.run_dir} {spec.attempt}"
        key = _name_of(argument_texts)
        _calls[attempt, key] += 1
        turn = _calls[attempt, key]
        with _lock(bound.arguments) as folder:
            note = folder / f"{key}.json"
            done = _read(note)
            mine = done.get("attempt") == attempt
            if mine and done["times"] >= turn and os.path.exists(done["path"]):
                return done["path"]
            path = original(*args, **kwargs)
            with suppress(OSError), atomic_path(str(note)) as temporary:
                text = json.dumps({"attempt": attempt, "times": turn, "path": str(path)})
                Path(temporary).write_text(text, encoding="utf-8")
            return path

    return get_file


@contextmanager
def _lock(arguments: Mapping[str, Any]) -> Iterator[Path]:
    """Hold the lock of the file asked for; the directory that it lies in."""
    target = _name_of({name: str(arguments[name]) for name in ("cache_subdir", "fname")})
    if not arguments["fname"]:
        target = _name_of({name: str(arguments[name]) for name in ("cache_subdir", "origin")})
    folder = _cache(arguments["cache_dir"]) / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"{target}.lock")
        lock.acquire()
    except (OSError, NotImplementedError):  # a cache to read from only, or without locks
        folder = Path(tempfile.gettempdir()) / f"phalanx-downloads-{getpass.getuser()}"
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / f"{target}.lock")
        lock.acquire()
    try:
        yield folder
    finally:
        lock.release()


def _cache(cache_dir: Any) -> Path:
    """The directory under which Keras puts what it downloads."""
    home = importlib.import_module("keras.src.backend.config").keras_home()
    cache = os.path.expanduser(home if cache_dir is None else cache_dir)
    if os.access(cache, os.W_OK):
        return Path(cache)
    return Path("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()) / ".keras"


def _name_of(argument_texts: Mapping[str, str]) -> str:
    return sha256(json.dumps(argument_texts, sort_keys=True).encode()).hexdigest()[:24]


def _read(note: Path) -> dict[str, Any]:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _retrieving_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def urlretrieve(url: str, filename: Any = None, *args: Any, **kwargs: Any) -> Any:
        if filename is None:
            return original(url, filename, *args, **kwargs)
        with atomic_path(os.fspath(filename)) as temporary:
            _, headers = original(url, temporary, *args, **kwargs)
        return filename, headers

    return urlretrieve


downloads_take_turns = Patches(_replacements)
"""Enter it, and one worker of a host downloads for all; leave it, and Keras is as it was."""
