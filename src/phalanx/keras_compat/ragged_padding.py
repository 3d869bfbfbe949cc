"""Rows of a ragged tensor are padded to the longest row of the global batch.

`ragged.to_tensor()` pads to the longest row, and so does `TextVectorization` without an
`output_sequence_length`. Convolutions, means and attention without a mask see the padding. A
replica has some of the rows, so it asks the others for their longest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from phalanx.gradients.replica_batch import FindBatch
from phalanx.gradients.replica_exchange import gather_equal
from phalanx.keras_compat.global_values import has_entries


def ragged_padding(find: FindBatch) -> Mapping[tuple[Any, str], Any]:
    """What to patch, so that replicas pad rows to one length.

    Args:
        find: gives the share of the replica.
    """
    return {(tf.RaggedTensor, "to_tensor"): _to_global_length(tf.RaggedTensor.to_tensor, find)}


def _to_global_length(original: Callable[..., Any], find: FindBatch) -> Callable[..., Any]:
    @functools.wraps(original)
    def to_tensor(
        self: Any, default_value: Any = None, name: str | None = None, shape: Any = None
    ) -> Any:
        padded = original(self, default_value, name, shape)
        replica_batch = find()
        is_known = padded.shape.rank is None or padded.shape[1:].is_fully_defined()
        if replica_batch is None or is_known or not has_entries(replica_batch, self.flat_values):
            return padded
        longest = gather_equal(tf.shape(padded)[1:], what="the longest row of a ragged tensor")
        longest = tf.reduce_max(longest, axis=0)
        replica_batch.record_total(longest)
        whole = original(self, default_value, name, tf.concat([[-1], longest], 0))
        whole.set_shape(padded.shape)
        return whole

    return to_tensor
