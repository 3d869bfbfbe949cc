"""What workers exchange: the dtypes that every device adds up, and a broadcast bit by bit."""

import numpy as np
import pytest
import tensorflow as tf

from phalanx.distributed.collectives import Collectives
from phalanx.distributed.tensorflow import TensorFlowCollectives

ADDED_UP_BY_GPUS = {tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64}
"""`DT_INT32` is refused: TensorFlow's base_collective_executor.cc."""

INTEGERS = [
    tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
]  # fmt: skip
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


class PeerHoldsTheSame(Collectives):
    """Two workers that hold the same tensors, on a GPU."""

    carriers = TensorFlowCollectives.carriers

    def __init__(self, rank=0):
        super().__init__(rank=rank, size=2, device="CPU:0")
        self.from_peer = None

    def sum(self, tensor):
        assert tensor.dtype in ADDED_UP_BY_GPUS
        return tensor + (tensor if self.from_peer is None else self.from_peer)

    def sum_slices(self, slices):
        raise NotImplementedError

    def concatenate(self, tensor):
        return tf.concat([tensor, tensor], axis=0)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=lambda dtype: dtype.name)
def test_sums_of_any_dtype(dtype):
    total = PeerHoldsTheSame().all_reduce(tf.cast([0, 1, 1], dtype))
    assert total.dtype == dtype
    assert tf.cast(total, tf.float32).numpy().tolist() == [
        0,
        *([1, 1] if dtype == tf.bool else [2, 2]),
    ]


def test_a_barrier():
    PeerHoldsTheSame().barrier()


class Sends(PeerHoldsTheSame):
    def sum(self, tensor):
        self.sent = super().sum(tensor) - tensor
        return self.sent


class Receives(PeerHoldsTheSame):
    def __init__(self, sent):
        super().__init__(rank=1)
        self.sent = sent

    def sum(self, tensor):
        assert not np.any(tensor)
        return super().sum(tensor) + self.sent


BITS = np.random.default_rng(3).integers(0, 256, 16 * 15, np.uint8).tobytes()
"""NaNs of all kinds among the floats."""


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 15])
def test_a_broadcast_hands_over_bits(count):
    dtypes = [*INTEGERS[1:], *FLOATS, tf.complex64, tf.complex128]
    values = [np.frombuffer(BITS, dtype.as_numpy_dtype, count) for dtype in dtypes]
    values += [np.arange(count) % 3 == 0, np.zeros((count, 0, 2), np.float32), np.float32(-0.0)]
    values += [np.frombuffer(BITS, np.int16, 6).reshape(2, 3, 1)]
    chief = Sends()
    own = chief.broadcast(values)
    received = Receives(chief.sent).broadcast([np.zeros_like(value) for value in values])
    for value, kept, got in zip(values, own, received, strict=True):
        for tensor in (kept, got):
            array = tensor.numpy()
            assert array.dtype == value.dtype
            assert array.shape == value.shape
            assert array.tobytes() == value.tobytes()
