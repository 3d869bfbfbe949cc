"""What the samples in TFRecord files are made of, so that they come back as they were written.

Whole numbers and float32 are written as the lists that `tf.train.Example` has for them, strings
and everything else as bytes. The schema lies next to the files, as JSON, and needs no code of ours
to read the files: `tf.io.parse_example` with `features()` is all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from phalanx.data.sources.file_kinds import SCHEMA_FILE
from phalanx.data.sources.lossless_cast import LossyCastError, cast_keeping_values
from phalanx.errors import DataError

_INTEGERS = ("int8", "int16", "int32", "int64", "bool", "uint16", "uint32")
Shape = Literal["one", "tuple", "dict"]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One array of a sample.

    Attributes:
        name: its feature's name.
        dtype: NumPy's name of its dtype; "string" for strings.
        shape: its shape, the same in every sample.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> Literal["ints", "floats", "bytes", "strings"]:
        """As what it is written."""
        if self.dtype in _INTEGERS:
            return "ints"
        if self.dtype == "string":
            return "strings"
        return "floats" if self.dtype == "float32" else "bytes"


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The arrays of a sample, and how they hang together: one, a tuple, or a dict by name."""

    structure: Shape
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, sample: Any) -> Schema:
        """The schema of samples such as this one.

        Raises:
            DataError: it is neither an array, nor a flat tuple or dict of arrays.
        """
        structure: Shape = "one"
        named: dict[str, Any] = {"x": sample}
        if isinstance(sample, dict):
            structure, named = "dict", {str(name): value for name, value in sample.items()}
        elif isinstance(sample, (tuple, list)):
            names = ["x", "y", "sample_weight"] if len(sample) <= 3 else []
            names = names or [f"x{i}" for i in range(len(sample))]
            structure, named = "tuple", dict(zip(names, sample, strict=False))
        if any(isinstance(value, (dict, tuple, list)) for value in named.values()):
            raise DataError(
                f"Asked to write samples that are a {type(sample).__name__} with others inside: "
                f"{list(named)}. Flatten them, or give serialize=, a function to bytes."
            )
        return cls(structure=structure, leaves=tuple(_leaf(n, v) for n, v in named.items()))

    def example(self, sample: Any, number: int) -> bytes:
        """The sample as a serialized `tf.train.Example`.

        Args:
            sample: of the structure, the shapes and the dtypes of the first.
            number: of the sample, for messages.

        Raises:
            DataError: it has other arrays, other shapes, or values that a dtype cannot hold.
        """
        values = self._values(sample, number)
        features = {leaf.name: _feature(leaf, values[leaf.name], number) for leaf in self.leaves}
        return bytes(
            tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        )

    def _values(self, sample: Any, number: int) -> dict[str, Any]:
        """The arrays of a sample, by name."""
        names = [leaf.name for leaf in self.leaves]
        if self.structure == "one":
            return {names[0]: sample}
        if self.structure == "dict" and isinstance(sample, dict):
            values = {str(name): value for name, value in sample.items()}
            if values.keys() == set(names):
                return values
            found = f"the keys {list(values)}"
        elif self.structure == "tuple" and isinstance(sample, (tuple, list)):
            if len(sample) == len(names):
                return dict(zip(names, sample, strict=True))
            found = f"{len(sample)} arrays"
        else:
            found = f"a {type(sample).__name__}"
        first = f"the keys {names}" if self.structure == "dict" else f"{len(names)} arrays"
        raise DataError(
            f"Asked to write samples that are each a {self.structure} with {first}, as the first "
            f"is; found sample {number} with {found}. Give all samples the same structure."
        )

    def features(self) -> dict[str, Any]:
        """What `tf.io.parse_example` needs to know."""
        return {leaf.name: _how_to_parse(leaf) for leaf in self.leaves}

    def parse(self, records: tf.Tensor) -> Any:
        """Samples, in a batch, of a batch of serialized examples; traced by TensorFlow."""
        parsed = tf.io.parse_example(records, self.features())
        values = {leaf.name: _decoded(leaf, parsed[leaf.name]) for leaf in self.leaves}
        if self.structure == "dict":
            return values
        return tuple(values.values()) if self.structure == "tuple" else values["x"]

    def to_json(self) -> str:
        """As it lies next to the files."""
        leaves = [{"name": a.name, "dtype": a.dtype, "shape": list(a.shape)} for a in self.leaves]
        return json.dumps({"schema": 1, "structure": self.structure, "arrays": leaves}, indent=2)

    def write(self, files: Sequence[str]) -> None:
        """Write it next to `files`, which are about to be written.

        Raises:
            DataError: it would replace the schema of other files.
        """
        place = _place_of(files)
        before = self.from_files(files)
        if before is not None and before != self:
            own = {os.path.basename(file) for file in files}
            found = sorted(tf.io.gfile.listdir(os.path.dirname(place)))
            others = [name for name in found if ".tfrecord" in name and name not in own]
            if others:
                raise DataError(
                    f"Asked to write {files[0]}; found {place} of other samples, by which "
                    f"{others[0]} is read. Write to another directory, or remove the files that "
                    "are no longer needed."
                )
        with tf.io.gfile.GFile(place, "w") as stream:
            stream.write(self.to_json())

    @classmethod
    def from_files(cls, files: Sequence[str]) -> Schema | None:
        """The schema in the directory of these files; None where there is none."""
        path = _place_of(files)
        if not tf.io.gfile.exists(path):
            return None
        with tf.io.gfile.GFile(path) as stream:
            document = json.loads(stream.read())
        leaves = [Leaf(**{**a, "shape": tuple(a["shape"])}) for a in document["arrays"]]
        return cls(structure=document["structure"], leaves=tuple(leaves))


def _place_of(files: Sequence[str]) -> str:
    return f"{os.path.dirname(files[0]) or '.'}/{SCHEMA_FILE}"


def _leaf(name: str, value: Any) -> Leaf:
    array = _array(value)
    dtype = "string" if array.dtype.kind in "SUO" else array.dtype.name
    return Leaf(name=name, dtype=dtype, shape=array.shape)


def _array(value: Any) -> np.ndarray:
    """NumPy's arrays of bytes cut zeros off their end; objects do not."""
    array = np.asarray(value)
    return np.array(value, object) if array.dtype.kind in "SU" else array


def _feature(leaf: Leaf, value: Any, number: int) -> Any:
    array = _array(value)
    if array.shape != leaf.shape:
        raise DataError(
            f"Asked to write samples whose {leaf.name} has the shape {leaf.shape}; found one with "
            f"{array.shape}: sample {number}. Make them in the same way, or give serialize=, a "
            "function to bytes."
        )
    try:
        array = cast_keeping_values(
            array, np.dtype(object if leaf.dtype == "string" else leaf.dtype)
        )
    except LossyCastError as error:
        raise DataError(
            f"Asked to write samples whose {leaf.name} is {leaf.dtype}, as in the first; found in "
            f"sample {number}: {error}. Convert {leaf.name} of all samples to one dtype that holds "
            "every value, or give serialize=, a function to bytes."
        ) from error
    if leaf.kind == "ints":
        numbers = array.astype(np.int64).ravel().tolist()  # protobuf takes no bool
        return tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
    if leaf.kind == "floats":
        return tf.train.Feature(float_list=tf.train.FloatList(value=array.ravel()))
    if leaf.kind == "strings":
        texts = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel().tolist()]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[little.tobytes()]))


def _how_to_parse(leaf: Leaf) -> Any:
    if leaf.kind == "bytes":
        return tf.io.FixedLenFeature([], tf.string)
    kinds = {"ints": tf.int64, "floats": tf.float32, "strings": tf.string}
    return tf.io.FixedLenFeature(leaf.shape, kinds[leaf.kind])


def _decoded(leaf: Leaf, value: tf.Tensor) -> tf.Tensor:
    if leaf.kind == "ints":
        return tf.cast(value, leaf.dtype)
    if leaf.kind != "bytes":
        return value
    size = int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
    flat = tf.io.decode_raw(value, leaf.dtype, fixed_length=size) if size else None
    if flat is None:
        return tf.zeros([tf.shape(value)[0], *leaf.shape], leaf.dtype)
    return tf.reshape(flat, [-1, *leaf.shape])
