"""Which checkpoint is the newest, and which are kept, where steps do not decide."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.checkpoint.fencing import held
from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.manifest import MANIFEST, Manifest, Piece, Shard, with_checksum
from phalanx.checkpoint.reader import latest
from phalanx.checkpoint.retention import Retention, prune
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter, Snapshot
from phalanx.errors import CheckpointCorruptedError, CheckpointNotFoundError, CheckpointVersionError


class Directory:
    """A checkpoint directory that each save, as a training does, takes for itself."""

    def __init__(self, path):
        self.folder = StorageDir.at(path)
        self.saves = 0

    def save(self, step, keep=3, began_at=None):
        self.saves += 1
        lineage = {} if began_at is None else {"training": str(began_at), "began_at": began_at}
        with held(self.folder) as lease:
            arrays, state = {"w": np.full(3, self.saves)}, {"lineage": lineage}
            one = Snapshot(step=step, epoch=0, arrays=arrays, state=state)
            # Clocks of hosts differ: the time says nothing.
            attempt, clock = str(self.saves), lambda: float(100 - self.saves)
            writer = ShardWriter(folder=self.folder, lease=lease, attempt=attempt, clock=clock)
            writer.write(one)
            prune(self.folder, Retention(max_to_keep=keep), saved=step, uncommitted_before=step)

    def damage(self, step):
        place = self.folder / f"step-{step:08d}"
        for name in place.names():
            if name.endswith(".safetensors"):
                place.write(name, b"other bytes")

    def latest(self):
        """The number of the save that `latest` gives, and its step."""
        found = latest(self.folder)
        return int(found.arrays["w"][0]), found.manifest.step


def test_saves_after_a_rollback_are_newer_and_what_was_abandoned_stays(tmp_path):
    directory = Directory(tmp_path)
    for step in (1000, 2000, 3000):
        directory.save(step)
    for step in (1500, 1600):
        directory.save(step, began_at=1000)
    assert directory.latest() == (5, 1600)
    directory.save(1700, began_at=1000)
    assert steps_in(directory.folder) == [1500, 1600, 1700, 2000, 3000]
    removed = prune(directory.folder, Retention(), abandoned=True)
    assert removed == ["step-00002000", "step-00003000"]


def test_a_damaged_one_is_replaced_by_the_one_that_its_training_followed(tmp_path):
    directory = Directory(tmp_path)
    for step in (1000, 2000):
        directory.save(step)
    directory.save(1500, began_at=1000)
    directory.damage(1500)
    assert directory.latest() == (1, 1000)


def test_a_training_that_goes_beyond_an_abandoned_branch_does_not_join_it(tmp_path):
    directory = Directory(tmp_path)
    for step in (1000, 2000):
        directory.save(step)
    directory.save(3000, began_at=1000)
    directory.damage(3000)
    assert directory.latest() == (1, 1000)


def test_one_that_is_kept_is_the_last(tmp_path):
    directory = Directory(tmp_path)
    for step in (200, 300):
        directory.save(step, keep=2)
    directory.damage(300)
    assert directory.latest() == (1, 200)
    directory.save(250, keep=1)
    assert directory.latest() == (3, 250)
    assert steps_in(directory.folder) == [250, 300]


def test_a_lease_that_was_removed_changes_no_order(tmp_path):
    directory = Directory(tmp_path)
    directory.save(20)
    directory.save(10)
    directory.folder.remove(".lease")
    assert directory.latest() == (2, 10)


@settings(max_examples=40, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["save", "save", "save", "damage"]), st.integers(1, 6)),
        max_size=14,
    ),
    keep=st.integers(1, 3),
)
def test_latest_is_the_last_save_that_is_complete(moves, keep, tmp_path_factory):
    directory = Directory(tmp_path_factory.mktemp("run"))
    branch = []  # the steps and numbers of saves that follow each other
    abandoned, damaged = set(), set()
    for move, step in moves:
        if move == "save":
            directory.save(step, keep)
            damaged.discard(step)
            abandoned = {*abandoned, *(each for each, _ in branch if each > step)} - {step}
            branch = [each for each in branch if each[0] < step] + [(step, directory.saves)]
            branch = branch[-keep:]
        elif step in steps_in(directory.folder):
            damaged.add(step)
            directory.damage(step)
        assert steps_in(directory.folder) == sorted({each for each, _ in branch} | abandoned)
        complete = [(number, each) for each, number in branch if each not in damaged]
        if complete:
            assert directory.latest() == complete[-1]
        else:
            with pytest.raises(CheckpointNotFoundError):
                directory.latest()


VALID = {"step": 3, "epoch": 0, "written": 1.0, "shards": [], "format": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": None},
        {"step": -1},
        {"step": 1.5},
        {"step": True},
        {"epoch": "0"},
        {"written": float("inf")},
        {"written": None},
        {"format": float("inf")},
        {"state": []},
        {"metrics": {"loss": "low"}},
        {"lease": 5},
        {"shards": None},
    ],
)
def test_a_manifest_of_wrong_types_is_damaged(wrong):
    content = with_checksum({**VALID, **wrong})
    Manifest.from_json(with_checksum(VALID), "here")
    with pytest.raises(CheckpointCorruptedError):
        Manifest.from_json(content, "here")


def test_a_number_beyond_floats_is_damaged():
    with pytest.raises(CheckpointCorruptedError):
        Manifest.from_json(with_checksum(VALID).replace(b'"format": 1', b'"format": 1e999'), "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@given(field=st.sampled_from([*VALID, "state", "metrics", "lease", "other"]), value=JSON)
def test_no_manifest_ends_in_another_error(field, value):
    content = with_checksum({**VALID, field: value})
    try:
        manifest = Manifest.from_json(content, "here")
    except (CheckpointCorruptedError, CheckpointVersionError):
        return
    assert manifest.commit is None or manifest.commit.fence >= 0
    assert Manifest.from_json(manifest.to_json(), "here") is not None


@given(data=st.data())
def test_a_changed_bit_of_a_manifest_is_damage_or_changes_nothing(data):
    pieces = (Piece(tensor="model/a", shape=(3, 2), dtype="float32", start=0, rows=3),)
    shard = Shard(file="shard-0-of-1.a.safetensors", bytes=24, sha256="0" * 64, pieces=pieces)
    state = {"position": {"epoch": 1, "step": 7}, "rates": [0.1, float("nan")], "a b": None}
    manifest = Manifest(step=7, epoch=1, written=12.5, shards=(shard,), state=state, lease="3.x")
    content = bytearray(manifest.to_json())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        read = Manifest.from_json(bytes(content), "here")
    except CheckpointCorruptedError:
        return
    assert read.to_json() == manifest.to_json()  # White space, or the case of an exponent.


@given(content=st.binary(max_size=60))
def test_bytes_that_are_no_manifest_are_damaged(content):
    with pytest.raises((CheckpointCorruptedError, CheckpointVersionError)):
        Manifest.from_json(content, MANIFEST)
