"""How many seeds a shuffle of `tf.data` has drawn: it draws two each time it is opened.

The number decides the order of the next pass. TensorFlow writes it into the state of an iterator
only (`epoch_num_random_samples` in tensorflow/core/kernels/data/shuffle_dataset_op.cc), so it is
read from the state of one that has just been opened, and set by restoring that state with another
number. `tf.raw_ops.SerializeIterator` gives a state as a vector of variants: each has names, joined
by "@@", and a `CompressedElement` with their values.

Private names used: `OwnedIterator._iterator_resource`, `tensorflow.core.framework.tensor_pb2` and
that format; guarded by tests/replicas/test_canaries.py.
"""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

_COUNT = b"epoch_num_random_samples"
_EACH = 2
"""Seeds drawn by one opening: `seed` and `seed2` of its generator."""


def seeds_drawn(shuffle: Any) -> int:
    """How many seeds a shuffle that reshuffles has drawn.

    Args:
        shuffle: the dataset that ends with it. The cost grows with its buffer: 7 ms for 1,000
            elements, 130 ms for 10,000, which it need not hold.
    """
    opened = _Opened(shuffle)
    opened.set(opened.count - _EACH)
    return opened.count - _EACH


def set_seeds_drawn(shuffle: Any, count: int) -> None:
    """Let the shuffle continue as if it had drawn so many seeds."""
    _Opened(shuffle).set(count)


class _Opened:
    """An iterator over a shuffle that has just been opened."""

    def __init__(self, shuffle: Any) -> None:
        self._iterator = iter(shuffle)
        self._resource = self._iterator._iterator_resource
        state = tf.raw_ops.SerializeIterator(
            resource_handle=self._resource, external_state_policy=0
        )
        self._parts = tf.unstack(state)
        for place, part in enumerate(self._parts):
            data = _data_of(tf.io.serialize_tensor(part).numpy())
            names = data.metadata.split(b"@@")[1:]
            if _COUNT in names:
                self._place, self._data, self._of_count = place, data, names.index(_COUNT)
                break
        compressed = tf.io.parse_tensor(self._data.tensors[0].SerializeToString(), tf.variant)
        self._values = tf.raw_ops.UncompressElement(
            compressed=compressed,
            output_types=[tf.int64] * len(names),
            output_shapes=[[]] * len(names),
        )
        self.count = int(self._values[self._of_count])

    def set(self, count: int) -> None:
        values = list(self._values)
        values[self._of_count] = tf.constant(count, tf.int64)
        compressed = tf.raw_ops.CompressElement(components=values)
        self._data.tensors[0].ParseFromString(tf.io.serialize_tensor(compressed).numpy())
        whole = _proto().TensorProto(dtype=tf.variant.as_datatype_enum, variant_val=[self._data])
        whole.tensor_shape.SetInParent()
        parts = list(self._parts)
        parts[self._place] = tf.io.parse_tensor(whole.SerializeToString(), tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=self._resource, serialized=tf.stack(parts))


def _data_of(serialized: bytes) -> Any:
    """What a serialized variant holds: its length, 7 bits to the byte, comes before it."""
    content = _proto().TensorProto.FromString(serialized).tensor_content
    begin = next(place for place, byte in enumerate(content) if byte < 0x80) + 1
    return _proto().VariantTensorDataProto.FromString(content[begin:])


def _proto() -> Any:
    return importlib.import_module("tensorflow.core.framework.tensor_pb2")
