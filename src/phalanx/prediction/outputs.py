"""What a model returns, as the bytes of a file."""

from __future__ import annotations

import csv
import io
from typing import Any

import keras
import numpy as np

from phalanx.prediction.plan import Format


def named_outputs(model: Any, outputs: Any) -> dict[str, np.ndarray]:
    """The arrays that `model.predict` returned, by their names.

    A dict has its keys, a list the names of the model's outputs, else numbers. One array is
    "output".
    """
    if isinstance(outputs, np.ndarray):
        return {"output": _savable(outputs)}
    leaves = keras.tree.flatten(outputs)
    own = list(getattr(model, "output_names", None) or ())
    if isinstance(outputs, dict):
        names = ["/".join(map(str, path)) for path, _ in _with_paths(outputs)]
    elif len(own) == len(leaves) == len(set(own)):
        names = own
    else:
        names = [str(number) for number in range(len(leaves))]
    return {name: _savable(leaf) for name, leaf in zip(names, leaves, strict=True)}


def file_of(arrays: dict[str, np.ndarray], format: Format) -> tuple[str, bytes]:
    """The ending of the file's name, and its bytes."""
    if format == "csv":
        return "csv", _as_csv(arrays)
    buffer = io.BytesIO()
    if len(arrays) == 1:
        np.save(buffer, next(iter(arrays.values())), allow_pickle=False)
        return "npy", buffer.getvalue()
    np.savez(buffer, allow_pickle=False, **arrays)
    return "npz", buffer.getvalue()


def _with_paths(outputs: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = keras.tree.flatten_with_path(outputs)
    return found


def _savable(output: Any) -> np.ndarray:
    """As a file of NumPy's holds it: text and not objects, float32 for bfloat16."""
    array: np.ndarray = np.asarray(output)
    if array.dtype.kind == "O":
        text = [one.decode(errors="replace") for one in array.flat]
        return np.array(text, str).reshape(array.shape)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _as_csv(arrays: dict[str, np.ndarray]) -> bytes:
    """A line with names, then one for each row; numbers have all their digits."""
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        flat = array.reshape(len(array), int(np.prod(array.shape[1:])))
        for number, column in enumerate(flat.T):
            columns[name if flat.shape[1] == 1 else f"{name}_{number}"] = column.astype(str)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()
