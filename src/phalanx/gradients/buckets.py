"""Which gradients travel together.

TensorFlow runs an operation as soon as its inputs are there. So a bucket of the gradients that the
backward pass makes first travels while the others are still computed, as in PyTorch's
`DistributedDataParallel` (Li et al. 2020, https://arxiv.org/abs/2006.15704, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

MB = 10**6
SMALL_MODEL_MB = 8.0
"""Up to this size, one piece. A choice, not a measured bound: each collective costs 1 to 2 ms."""

AUTOMATIC_BUCKETS = 8
SMALLEST_MB, LARGEST_MB = 4.0, 25.0
"""The automatic size of a bucket: an eighth of the gradients, within these bounds."""


def plan_buckets(
    tensors: Sequence[tf.Tensor],
    *,
    bucket_mb: float | None,
    size_of: Callable[[tf.DType], int] = lambda dtype: int(dtype.size),
) -> list[list[int]]:
    """The places of the tensors of each bucket; the buckets in the order in which they are ready.

    A bucket holds one dtype. It takes tensors from the last to the first, which is about the order
    of the backward pass, until it is as near to its size as whole tensors allow. The result depends
    on shapes, dtypes and the arguments only, so it is the same on every worker.

    Args:
        tensors: in the order of the forward pass.
        bucket_mb: the size of a bucket, 0 for one for each dtype, None for the automatic choice.
        size_of: the bytes of an entry while it travels, by its dtype.
    """
    sizes = [_bytes(tensor, size_of) for tensor in tensors]
    known = [size for size in sizes if size is not None]
    if bucket_mb is None:
        whole = len(known) < len(sizes) or _are_made_together(tensors)
        bucket_mb = 0.0 if whole else automatic_bucket_mb(sum(known) / MB)
    found: list[list[int]] = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        members = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        found += [members] if not bucket_mb else _split(members, sizes, bucket_mb * MB)
    return sorted(found, key=lambda bucket: -min(bucket))


def automatic_bucket_mb(total_mb: float) -> float:
    """The size of a bucket for gradients of `total_mb` in all; 0 for one piece."""
    if total_mb <= SMALL_MODEL_MB:
        return 0.0
    return min(max(total_mb / AUTOMATIC_BUCKETS, SMALLEST_MB), LARGEST_MB)


def _split(members: list[int], sizes: Sequence[int | None], limit: float) -> list[list[int]]:
    found: list[list[int]] = []
    filled = 0.0
    for i in reversed(members):
        size = sizes[i] or 0
        if found and abs(filled + size - limit) <= abs(filled - limit):
            found[-1].append(i)
            filled += size
        else:
            found.append([i])
            filled = size
    return [sorted(bucket) for bucket in found]


def _bytes(tensor: tf.Tensor, size_of: Callable[[tf.DType], int]) -> int | None:
    entries = tensor.shape.num_elements()
    return None if entries is None else entries * size_of(tensor.dtype)


def _are_made_together(tensors: Sequence[Any]) -> bool:
    """Whether nothing can overlap: without a graph, or where one operation makes all.

    One function that XLA has compiled gives all its results at its end.
    """
    if tf.executing_eagerly():
        return True
    makers = {id(tensor.op) for tensor in tensors if tf.is_symbolic_tensor(tensor)}
    return len(makers) < 2
