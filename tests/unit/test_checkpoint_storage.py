"""Checkpoints on disk: whole or absent, whatever breaks, wherever they lie."""

import json
import threading
import uuid
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.checkpoint.history import branch_of_last, in_order_of_commit, steps_in
from phalanx.checkpoint.manifest import MANIFEST, with_checksum
from phalanx.checkpoint.reader import check_compatible, latest, manifest_of, read, verify
from phalanx.checkpoint.retention import Retention, prune
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.sharding import describe, plan_shards, take
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import STEP, ShardWriter, Snapshot
from phalanx.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointVersionError,
    ConfigurationError,
)

RNG = np.random.default_rng(0)
AT_ONCE = RetryPolicy(max_retries=0)


def arrays():
    return {
        "kernel": RNG.normal(size=(7, 5)).astype("float32"),
        "half": RNG.normal(size=(4,)).astype(ml_dtypes.bfloat16),
        "count": np.array(3, "int64"),
        "none": np.zeros((0, 3), "float32"),
        "flags": np.array([True, False]),
    }


def snapshot(step=1, **more):
    return Snapshot(step=step, epoch=0, arrays=arrays(), **more)


@pytest.fixture(params=["path", "memory"])
def folder(request, tmp_path):
    return StorageDir.at(
        tmp_path / "run" if request.param == "path" else f"memory://{uuid.uuid4()}"
    )


def write_by(workers, folder, taken, **options):
    writers = [
        ShardWriter(folder=folder, rank=r, workers=workers, **options) for r in range(workers)
    ]
    threads = [threading.Thread(target=w.write, args=(taken,)) for w in writers[1:]]
    for thread in threads:
        thread.start()
    manifest = writers[0].write(taken)
    for thread in threads:
        thread.join()
    return manifest


def assert_equal(got, expected):
    assert sorted(got) == sorted(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert (got[name] == array).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_what_was_written_is_read(workers, folder):
    taken = snapshot(step=12, state={"epoch": [1, 2]}, metrics={"loss": 0.5})
    manifest = write_by(workers, folder, taken)
    assert len(manifest.shards) == workers
    loaded = read(folder, 12)
    assert_equal(loaded.arrays, taken.arrays)
    assert loaded.manifest == manifest
    assert loaded.manifest.state == {"epoch": [1, 2]}
    check_compatible(manifest, describe(taken.arrays), "here")


@given(
    shapes=st.lists(st.lists(st.integers(0, 6), max_size=3).map(tuple), min_size=1, max_size=6),
    workers=st.integers(1, 5),
)
def test_every_row_of_every_tensor_is_somebodys_and_only_once(shapes, workers):
    held = {f"t{i}": np.arange(np.prod(s, dtype=int)).reshape(s) for i, s in enumerate(shapes)}
    plan = plan_shards(describe(held), workers)
    assert len(plan) == workers
    again = plan_shards(dict(reversed(describe(held).items())), workers)
    assert plan == again, "workers must come to the same plan whatever the order"
    for name, array in held.items():
        pieces = [p for share in plan for p in share if p.tensor == name]
        rows = sorted(i for p in pieces for i in range(p.start, p.start + p.rows))
        assert rows == list(range(len(array) if array.ndim else 1))
    for share in plan:
        for piece, value in zip(share, take(held, share).values(), strict=True):
            assert value.size == 0 or value.size == piece.rows * np.prod(piece.shape[1:], dtype=int)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.integers(1, 6))
def test_shares_are_about_equal(rows, workers):
    plan = plan_shards({f"t{i}": ((n,), "float32") for i, n in enumerate(rows)}, workers)
    sizes = [sum(p.rows for p in share) for share in plan]
    assert max(sizes) <= 2 * sum(rows) / workers + 1


def test_nothing_is_there_before_the_manifest(folder):
    ShardWriter(folder=folder, rank=1, workers=2).write(snapshot())
    assert steps_in(folder) == []
    with pytest.raises(CheckpointNotFoundError, match="no complete one"):
        latest(folder)


class Broken(StorageDir):
    """Fails at the n-th write, after half of the bytes are out if they go to a file."""

    def __init__(self, folder, counter, at):
        super().__init__(folder.filesystem, folder.path)
        vars(self)["counter"], vars(self)["at"] = counter, at

    def __truediv__(self, name):
        return Broken(super().__truediv__(name), self.counter, self.at)

    def write(self, name, content):
        self.counter.append(name)
        if len(self.counter) == self.at:
            raise OSError(28, "No space left on device")
        super().write(name, content)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_write_that_fails_leaves_the_last_good_one(at, folder):
    good, bad = snapshot(1), snapshot(2)
    ShardWriter(folder=folder).write(good)
    with pytest.raises(OSError, match="No space"):
        ShardWriter(folder=Broken(folder, [], at), retry_policy=AT_ONCE).write(bad)
    assert steps_in(folder) == [1]
    assert_equal(latest(folder).arrays, good.arrays)
    ShardWriter(folder=folder).write(bad)
    assert_equal(latest(folder).arrays, bad.arrays)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_write_that_fails_once_is_tried_again(at, folder):
    waits = []
    policy = RetryPolicy(max_retries=2, first=1.0, jitter=0.0, sleep=waits.append)
    taken = snapshot()
    ShardWriter(folder=Broken(folder, [], at), retry_policy=policy).write(taken)
    assert waits == [1.0]
    assert_equal(latest(folder).arrays, taken.arrays)


def test_waits_double_up_to_the_longest_and_the_last_failure_is_raised():
    waits = []
    policy = RetryPolicy(max_retries=4, first=1.0, longest=3.0, jitter=0.0, sleep=waits.append)

    def fail():
        raise OSError(f"try {len(waits)}")

    with pytest.raises(OSError, match="try 4"):
        policy.call_with_retry("do it", fail)
    assert waits == [1.0, 2.0, 3.0, 3.0]


def test_no_file_is_left_half_written(tmp_path, monkeypatch):
    folder = StorageDir.at(tmp_path)
    folder.write("a", b"whole")

    def fails(*_):
        raise OSError("disk")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="disk"):
        folder.write("a", b"half")
    assert folder.read("a") == b"whole"
    assert folder.names() == ["a"]


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_found(data):
    folder = StorageDir.at(f"memory://{uuid.uuid4()}")
    ShardWriter(folder=folder).write(snapshot())
    place = folder / "step-00000001"
    (shard,) = manifest_of(folder, 1).shards
    content = bytearray(place.read(shard.file))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    place.write(shard.file, bytes(content))
    with pytest.raises(CheckpointCorruptedError, match="another checksum"):
        read(folder, 1)


def damage(folder, step, how):
    place = folder / f"step-{step:08d}"
    shard = manifest_of(folder, step).shards[0].file
    if how == "cut":
        place.write(shard, place.read(shard)[:-1])
    elif how == "missing":
        place.remove(shard)
    else:
        place.write(MANIFEST, place.read(MANIFEST)[:-40])


@pytest.mark.parametrize("how", ["cut", "missing", "manifest"])
def test_a_damaged_one_is_passed_over_and_said(how, folder, caplog):
    first = snapshot(1)
    ShardWriter(folder=folder).write(first)
    ShardWriter(folder=folder).write(snapshot(2))
    damage(folder, 2, how)
    assert_equal(latest(folder).arrays, first.arrays)
    assert "step-00000002" in caplog.text
    with pytest.raises(CheckpointCorruptedError):
        read(folder, 2)
    assert [step for step, wrong in verify(folder) if wrong] == [2]
    damage(folder, 1, how)
    with pytest.raises(CheckpointNotFoundError, match="2 damaged"):
        latest(folder)


def test_a_newer_format_is_its_own_error(folder):
    ShardWriter(folder=folder).write(snapshot())
    place = folder / "step-00000001"
    place.write(MANIFEST, with_checksum({**json.loads(place.read(MANIFEST)), "format": 9}))
    with pytest.raises(CheckpointVersionError, match="format 9; this Phalanx reads up to 1"):
        latest(folder)


def test_what_does_not_fit_is_distinguished(folder):
    manifest = ShardWriter(folder=folder).write(snapshot())
    wanted = {
        "other": ((1,), "float32"),
        "kernel": ((7, 6), "float32"),
        "flags": ((2,), "int32"),
        "count": ((), "int64"),
    }
    with pytest.raises(CheckpointMismatchError) as caught:
        check_compatible(manifest, wanted, "here")
    message = str(caught.value)
    assert "other is missing" in message
    assert "kernel has shape (7, 5), wanted (7, 6)" in message
    assert "flags has dtype bool, wanted int32" in message
    assert "count" not in message


def test_a_step_that_is_not_there_says_which_are(folder):
    ShardWriter(folder=folder).write(snapshot(3))
    with pytest.raises(CheckpointNotFoundError, match=r"step 4 .*there are: 3"):
        read(folder, 4)


def test_a_share_that_does_not_come_ends_the_wait(folder):
    time = [0.0]
    writer = ShardWriter(
        folder=folder,
        workers=3,
        peer_timeout=10.0,
        timer=lambda: time[0],
        sleep=lambda _: time.__setitem__(0, time[0] + 4.0),
    )
    with pytest.raises(CheckpointError, match="2 of 3 workers have not written"):
        writer.write(snapshot())
    assert steps_in(folder) == []
    assert time == [12.0]


def test_each_share_that_comes_starts_the_wait_again(folder):
    """As of workers that write to slow storage one after the other."""
    time = [0.0]
    peers = [ShardWriter(folder=folder, rank=rank, workers=4) for rank in (1, 2, 3)]

    def sleep(_):
        time[0] += 8.0
        if time[0] % 16 == 0:
            peers.pop().write(snapshot())

    writer = ShardWriter(
        folder=folder, workers=4, peer_timeout=10.0, timer=lambda: time[0], sleep=sleep
    )
    assert writer.write(snapshot()) is not None
    assert time == [48.0]


def test_leftovers_of_another_attempt_are_not_mistaken(folder):
    ShardWriter(folder=folder, rank=1, workers=2, attempt="0").write(snapshot())
    waits = []

    def impatient(_):
        waits.append(1)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        ShardWriter(folder=folder, workers=2, attempt="1", sleep=impatient).write(snapshot())
    assert waits


@pytest.mark.parametrize(
    ("retention", "stay"),
    [
        (Retention(max_to_keep=2), [4, 5]),
        (Retention(max_to_keep=9), [1, 2, 3, 4, 5]),
        (Retention(max_to_keep=1, best=("val_loss", "min")), [2, 5]),
        (Retention(max_to_keep=1, best=("val_loss", "max")), [3, 5]),
        (Retention(max_to_keep=1, best=("unknown", "max")), [5]),
    ],
)
def test_pruning_keeps_the_newest_and_the_best(retention, stay, folder):
    for step, loss in enumerate([0.5, 0.1, 0.9, float("nan"), 0.4], start=1):
        ShardWriter(folder=folder).write(snapshot(step, metrics={"val_loss": loss}))
    removed = prune(folder, retention)
    assert steps_in(folder) == stay
    assert removed == [f"step-{s:08d}" for s in range(1, 6) if s not in stay]


@settings(max_examples=60, deadline=None)
@given(
    saves=st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from([0.0, 1.0, 2.0])), min_size=1, max_size=12
    ),
    keep=st.integers(1, 4),
    best=st.sampled_from([None, ("loss", "min")]),
    reports=st.booleans(),
)
def test_what_was_just_saved_stays_whatever_the_order_of_saves(saves, keep, best, reports):
    folder, retention = (
        StorageDir.at(f"memory://{uuid.uuid4()}"),
        Retention(max_to_keep=keep, best=best),
    )
    for number, (step, loss) in enumerate(saves):
        # Clocks of hosts differ: who has just saved says so, and does not go by the time.
        clock = (lambda: 0.0) if reports else partial(float, number)
        one = Snapshot(step=step, epoch=0, arrays={"w": np.ones(1)}, metrics={"loss": loss})
        ShardWriter(folder=folder, attempt=str(number), clock=clock).write(one)
        there = in_order_of_commit(manifest_of(folder, step) for step in steps_in(folder))
        reported = {"saved": step, "uncommitted_before": step} if reports else {}
        prune(folder, retention, **reported)
        left = set(steps_in(folder))
        branch = {each.step for each in branch_of_last(there)}
        assert step in left
        assert left >= {each.step for each in branch_of_last(there)[-keep:]}
        assert left - branch == {each.step for each in there} - branch  # abandoned
        assert len(left & branch) <= keep + 1 + (best is not None)
        read(folder, step)


def test_pruning_removes_leftovers_only_when_asked(folder):
    ShardWriter(folder=folder).write(snapshot(1))
    ShardWriter(folder=folder, rank=1, workers=2).write(snapshot(2))
    assert prune(folder, Retention()) == []
    assert prune(folder, Retention(), uncommitted=True) == ["step-00000002"]
    assert folder.names() == ["step-00000001"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retention(max_to_keep=0),
        lambda: Retention(best=("val_loss", "least")),
        lambda: RetryPolicy(max_retries=-1),
        lambda: StorageDir.at("nosuch://x"),
    ],
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(ConfigurationError):
        make()


def test_a_shard_that_is_ended_before_the_commit_is_not_committed(folder):
    ShardWriter(folder=folder, rank=1, workers=2).write(snapshot())
    (shard,) = [n for n in (folder / "step-00000001").names() if n.endswith(".safetensors")]
    (folder / "step-00000001").remove(shard)
    with pytest.raises(CheckpointError, match=f"{shard} was written and is missing"):
        ShardWriter(folder=folder, workers=2).write(snapshot())
    assert steps_in(folder) == []


def test_who_cannot_write_says_so_to_the_chief(folder):
    place = folder / "step-00000001"
    place.write("shard-1-of-2.0.safetensors.failed", b"no space left")
    with pytest.raises(CheckpointError, match="another worker could not write its share"):
        ShardWriter(folder=folder, workers=2).write(snapshot())
    assert steps_in(folder) == []


def test_what_a_failed_checkpoint_has_written_is_removed_on_all_workers(folder):
    place = folder / "step-00000001"
    ShardWriter(folder=folder, rank=1, workers=2, attempt="a-1").write(snapshot())
    place.write("shard-0-of-2.a-1.safetensors.failed", b"no space left")
    place.write("shard-0-of-2.a-11.safetensors", b"of another attempt")
    ShardWriter(folder=folder, workers=2, attempt="a-1").discard(1)
    assert place.names() == ["shard-0-of-2.a-11.safetensors"]


def test_what_was_published_is_not_removed_though_storage_reported_an_error(folder):
    writer = ShardWriter(folder=folder)
    writer.write(snapshot())
    writer.discard(1)
    assert read(folder, 1).manifest.step == 1


def test_the_same_step_written_again_replaces_it_and_leaves_nothing(folder):
    ShardWriter(folder=folder, attempt="a-1").write(snapshot(metrics={"loss": 1.0}))
    ShardWriter(folder=folder, attempt="a-2").write(snapshot(metrics={"loss": 2.0}))
    assert manifest_of(folder, 1).metrics == {"loss": 2.0}
    assert (folder / "step-00000001").names() == [
        "manifest.json",
        "shard-0-of-1.a-2.safetensors",
        "shard-0-of-1.a-2.safetensors.json",
    ]


def test_what_one_worker_has_alone_comes_back(folder):
    def of_rank(rank):
        own = {f"worker/{rank}/note": np.full(3, rank)}
        return Snapshot(step=1, epoch=0, arrays={"w": np.arange(4.0)}, own=own)

    ShardWriter(folder=folder, rank=1, workers=2).write(of_rank(1))
    ShardWriter(folder=folder, rank=0, workers=2).write(of_rank(0))
    arrays = read(folder, 1).arrays
    assert set(arrays) == {"w", "worker/0/note", "worker/1/note"}
    np.testing.assert_array_equal(arrays["worker/1/note"], [1, 1, 1])


def test_a_share_is_a_copy(folder):
    arrays = {"w": np.zeros(3)}
    writer = ShardWriter(folder=folder)
    share = writer.take(Snapshot(step=1, epoch=0, arrays=arrays))
    arrays["w"] += 1
    writer.store(share)
    np.testing.assert_array_equal(read(folder, 1).arrays["w"], np.zeros(3))


def test_pruning_compares_steps_and_not_names(folder):
    for step in (5, 99_999_999, 100_000_000, 100_000_004):
        (folder / STEP.format(step)).write("shard", b"half")
    (folder / "step-notes").write("mine", b"kept")
    removed = prune(folder, Retention(), uncommitted_before=100_000_002)
    assert sorted(removed) == ["step-00000005", "step-100000000", "step-99999999"]
    assert {"step-100000004", "step-notes"} <= set(folder.names())


def test_verify_leaves_out_what_is_removed_meanwhile(folder):
    for step in (1, 2, 3):
        ShardWriter(folder=folder).write(replace(snapshot(), step=step))
    found = verify(folder)
    assert next(found) == (1, None)
    folder.remove("step-00000002")
    assert list(found) == [(3, None)]
