"""Storage that breaks as planned, under the checkpoints that must bear it."""

import errno
import uuid

import fsspec
import numpy as np
import pytest

from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.reader import latest, verify
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter, Snapshot
from phalanx.testing import chaos
from phalanx.testing.chaos.injector import Marks
from phalanx.testing.chaos.storage_faults import FaultyDisk, arm

ONCE = RetryPolicy(max_retries=0)
AGAIN = RetryPolicy(max_retries=2, first=0.0, jitter=0.0)


@pytest.fixture(params=["file", "memory"])
def folder(request, tmp_path):
    path = tmp_path / "run" if request.param == "file" else uuid.uuid4().hex
    return StorageDir.at(f"faulty+{request.param}://{path}")


@pytest.fixture
def breaks():
    def plan(*faults, rank=0, marks=None, sleep=None):
        arm(FaultyDisk(faults, rank, marks or Marks(None), sleep=sleep or (lambda _: None)))

    yield plan
    arm(None)


def write(folder, step, retry_policy=ONCE):
    arrays = {"kernel": np.arange(12.0).reshape(3, 4)}
    ShardWriter(folder=folder, retry_policy=retry_policy).write(
        Snapshot(step=step, epoch=0, arrays=arrays)
    )


def assert_complete(folder, *steps):
    assert steps_in(folder) == list(steps)
    assert dict(verify(folder)) == dict.fromkeys(steps)


def test_without_a_fault_all_passes(folder):
    write(folder, 1)
    assert_complete(folder, 1)
    real = StorageDir.at(f"{folder.filesystem.inner}://{folder.path}")
    assert_complete(real, 1)
    assert (latest(real).arrays["kernel"] == latest(folder).arrays["kernel"]).all()


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS", "EACCES"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_refused_write_leaves_the_last_good_one(nth, error, folder, breaks):
    write(folder, 1)
    breaks(chaos.FailWrites(nth=nth, error=error))
    with pytest.raises(OSError, match="on purpose") as caught:
        write(folder, 2)
    assert caught.value.errno == getattr(errno, error)
    assert_complete(folder, 1)
    write(folder, 3)
    assert_complete(folder, 1, 3)
    assert not [name for name in folder.filesystem.find(folder.path) if name.endswith(".part")]


def test_as_many_writes_fail_as_were_asked_and_are_tried_again(folder, breaks):
    breaks(chaos.FailWrites(nth=2, times=2))
    write(folder, 1, AGAIN)
    assert_complete(folder, 1)
    breaks(chaos.FailWrites(nth=2, times=3))
    with pytest.raises(OSError, match="No space"):
        write(folder, 2, AGAIN)
    breaks(chaos.FailWrites(times=None))
    for step in (3, 4):
        with pytest.raises(OSError, match="No space"):
            write(folder, step, AGAIN)


def test_half_of_the_bytes_are_out_when_a_disk_is_full(tmp_path, breaks):
    breaks(chaos.FailWrites())
    with (
        pytest.raises(OSError, match="No space"),
        fsspec.open(f"faulty+file://{tmp_path}/a", "wb") as file,
    ):
        file.write(b"12345678")
    assert (tmp_path / "a").read_bytes() == b"1234"


def test_slow_writes_take_their_time(folder, breaks):
    waits = []
    breaks(chaos.SlowWrites(seconds=2.5, nth=2, times=2), sleep=waits.append)
    write(folder, 1)
    assert waits == [2.5, 2.5]


def test_a_directory_that_vanishes_is_made_again(folder, breaks):
    write(folder, 1)
    breaks(chaos.VanishingDirectory(nth=1))
    write(folder, 2, AGAIN)
    assert_complete(folder, 1, 2)


def test_a_checkpoint_whose_shard_vanished_is_damaged_and_passed_over(folder, breaks):
    write(folder, 1)
    breaks(chaos.VanishingDirectory(nth=3))  # right before the manifest
    write(folder, 2, AGAIN)
    assert latest(folder).manifest.step == 1


def test_a_fault_is_one_workers_and_happens_once_in_a_run(folder, breaks, tmp_path):
    fault = chaos.FailWrites(worker=1)
    breaks(fault, rank=0, marks=Marks(tmp_path / "chaos"))
    write(folder, 1)
    breaks(fault, rank=1, marks=Marks(tmp_path / "chaos"))
    with pytest.raises(OSError, match="No space"):
        write(folder, 2)
    breaks(fault, rank=1, marks=Marks(tmp_path / "chaos"))
    write(folder, 2)
    breaks(chaos.FailWrites(worker=1, every_attempt=True), rank=1, marks=Marks(tmp_path / "chaos"))
    with pytest.raises(OSError, match="No space"):
        write(folder, 3)
