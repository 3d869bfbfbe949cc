"""Memory that is kept from one checkpoint to the next."""

import numpy as np
import pytest

from phalanx.checkpoint import writer
from phalanx.checkpoint.sharding import plan_shards
from phalanx.checkpoint.writer import Staging

VALUES = {
    "large": np.arange(12_000_000, dtype="float32").reshape(3000, 4000),  # three chunks
    "turned": np.arange(12_000_000, dtype="float32").reshape(4000, 3000).T,
    "small": np.array([True, False]),
    "scalar": np.array(7),
    "empty": np.zeros((0, 3)),
}


@pytest.mark.parametrize("names", [["large"], ["turned"], ["small", "scalar", "empty"], VALUES])
def test_copies_are_equal_and_their_own(names):
    values = {name: VALUES[name] for name in names}
    copies = Staging().copy(values)
    for name, value in values.items():
        np.testing.assert_array_equal(copies[name], value)
        assert copies[name].dtype == value.dtype
        assert not np.shares_memory(copies[name], value)


def test_memory_is_used_again():
    held = Staging()
    first = held.copy({"a": np.zeros(3), "b": np.zeros(2)})
    second = held.copy({"a": np.ones(3), "b": np.ones(4)})
    assert second["a"] is first["a"]
    assert second["b"] is not first["b"]  # another shape
    np.testing.assert_array_equal(second["b"], np.ones(4))


def test_a_reserved_piece_needs_no_memory_later():
    held = Staging()
    (pieces,) = plan_shards({"w": ((5, 2), "float32"), "step": ((), "int64")}, 1)
    held.reserve(pieces)
    reserved = dict(held._held)
    taken = {p.key: np.ones((p.rows, *p.shape[1:]) if p.shape else (), p.dtype) for p in pieces}
    assert all(copy is reserved[key] for key, copy in held.copy(taken).items())


def test_a_chunk_ends_between_two_numbers():
    assert writer._CHUNK % 16 == 0
