"""What a model returns, as the bytes of a file."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import DataError
from phalanx.prediction.plan import Format


def named_outputs(model: Any, outputs: Any) -> dict[str, np.ndarray]:
    """The arrays that `model.predict` returned, by their names.

    A dict has its keys, a list the names of the model's outputs, else numbers. One array is
    "output".

    Raises:
        DataError: one of them is not an array, such as a ragged tensor.
    """
    if not isinstance(outputs, dict | list | tuple):
        return {"output": _savable("output", outputs)}
    leaves = keras.tree.flatten(outputs)
    own = list(getattr(model, "output_names", None) or ())
    if isinstance(outputs, dict):
        names = ["/".join(map(str, path)) for path, _ in _with_paths(outputs)]
    elif len(own) == len(leaves) == len(set(own)):
        names = own
    else:
        names = [str(number) for number in range(len(leaves))]
    return {name: _savable(name, leaf) for name, leaf in zip(names, leaves, strict=True)}


def file_of(arrays: dict[str, np.ndarray], format: Format) -> tuple[str, bytes]:
    """The ending of the file's name, and its bytes."""
    if format == "csv":
        return "csv", _as_csv(arrays)
    buffer = io.BytesIO()
    if len(arrays) == 1:
        np.save(buffer, next(iter(arrays.values())), allow_pickle=False)
        return "npy", buffer.getvalue()
    _write_npz(buffer, arrays)
    return "npz", buffer.getvalue()


def _write_npz(file: io.BytesIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays as `np.savez` does, whatever their names.

    `np.savez` takes them as keywords, so that none can have the name of another argument of it:
    `file`, or `allow_pickle`, which NumPy before 2.2 takes for an array.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _with_paths(outputs: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = keras.tree.flatten_with_path(outputs)
    return found


def _savable(name: str, output: Any) -> np.ndarray:
    """As a file of NumPy's holds it: text and not objects, float32 for bfloat16."""
    if isinstance(output, tf.RaggedTensor | tf.SparseTensor):
        raise DataError(
            f"Asked to save the model's {name!r} as an array; found a {type(output).__name__}. Let "
            "the model return a dense tensor: to_tensor() of a RaggedTensor makes one, and "
            "tf.sparse.to_dense of a SparseTensor."
        )
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
            title = name if flat.shape[1] == 1 else f"{name}_{number}"
            if title in columns:
                raise DataError(
                    f"Asked to write the outputs {', '.join(arrays)} as CSV; two of their columns "
                    f"would be {title!r}. Use --format npy, or rename an output of the model."
                )
            columns[title] = column.astype(str)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()
