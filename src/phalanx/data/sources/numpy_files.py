"""NumPy's files: .npy with one array, .npz with several by name."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from phalanx.data.sources.arrays import ArraySource
from phalanx.data.sources.files import (
    expand_files,
    is_file_pattern,
    matching,
    read_whole,
    suffix_of,
)
from phalanx.errors import DataError

_PARTS = ("x", "y", "sample_weight")
"""Arrays of an .npz that are the parts of a sample, as `fit` takes them."""


def from_numpy(given: Any) -> ArraySource | None:
    """Of names that end in .npy or .npz; one after the other where there are several."""
    if not is_file_pattern(given) or suffix_of(expand_files(given)) not in (".npy", ".npz"):
        return None
    names = matching(given)
    read = [_read(name) for name in names]
    if len({frozenset(arrays) for arrays in read}) > 1:
        raise DataError(
            f"Asked for the arrays {sorted(read[0])} of {len(names)} files, as in {names[0]}; "
            "found others in some of them. Give all files arrays of the same names."
        )
    arrays = {part: np.concatenate([one[part] for one in read]) for part in read[0]}
    return ArraySource(_sample(arrays))


def _read(name: str) -> dict[str, np.ndarray]:
    try:
        loaded = np.load(io.BytesIO(read_whole(name)))
        return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {"x": loaded}
    except (ValueError, EOFError, OSError) as error:
        found = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"Asked to read {name} as NumPy's; found: {found} Write it with numpy.save or "
            "numpy.savez, without Python objects in it."
        ) from error


def _sample(arrays: dict[str, np.ndarray]) -> Any:
    """One array itself, `x`, `y` and `sample_weight` as a tuple, others as a dict."""
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if set(arrays) == set(_PARTS[: len(arrays)]):
        return tuple(arrays[part] for part in _PARTS[: len(arrays)])
    return arrays
