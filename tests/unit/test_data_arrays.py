"""Arrays of other libraries, as `fit` takes them."""

import numpy as np

from phalanx.data.adapt import make_batch_source
from phalanx.distributed.topology import ReplicaTopology


class Tensor:
    """As Keras knows a tensor of PyTorch, which is not installed."""

    __module__ = "torch"

    def __init__(self, values):
        self.values = values
        self.shape, self.dtype = values.shape, values.dtype

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_each_batch_of_tensors_of_pytorch_has_its_own_rows():
    x = np.arange(10, dtype="float32")
    source = make_batch_source(
        Tensor(x), Tensor(-x), topology=ReplicaTopology(), seed=0, batch_size=4
    )
    iterator = source.open(0)
    for first in (0, 4, 8):
        _, ((_, data),) = next(iterator)
        for tensor, expected in zip(data, (x, -x), strict=True):
            assert tensor.numpy().tolist() == expected[first : first + 4].tolist()
