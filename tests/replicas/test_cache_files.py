"""`Dataset.cache(filename)` of two workers of one host, played by one process."""

import pytest
import tensorflow as tf

from phalanx.cluster.spec import WorkerSpec
from phalanx.keras_compat.cache_files import caches_by_worker


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """`cached(rank)`: the dataset that a worker's script makes."""

    def cached(rank):
        spec = WorkerSpec(rank=rank, world_size=2, addresses=("a:1", "b:1"))
        for name, value in spec.to_environment().items():
            monkeypatch.setenv(name, value)
        with caches_by_worker:
            return tf.data.Dataset.range(5).cache(str(tmp_path / "rows"))

    return cached


def numbers(dataset):
    return [int(number) for number in dataset]


def test_two_workers_cache_at_the_same_time(cached):
    first, second = cached(0), cached(1)
    reading = iter(first)
    next(reading)
    for _ in range(2):
        assert numbers(second) == list(range(5))
    assert [int(number) for number in reading] == list(range(1, 5))


def test_a_file_that_is_complete_is_read_by_all(cached, tmp_path):
    for rank in (0, 1):
        assert numbers(cached(rank)) == list(range(5))
    assert not list(tmp_path.glob("*worker*"))


def test_a_cache_in_memory_has_no_file(cached, tmp_path, monkeypatch):
    cached(1)
    with caches_by_worker:
        assert numbers(tf.data.Dataset.range(3).cache()) == [0, 1, 2]
    assert not list(tmp_path.iterdir())
