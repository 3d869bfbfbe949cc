"""Atomic renames: the bytes are on disk before the name, and the name before the call returns.

A recorder stands in for the kernel: it notes what is synced and renamed, in order. A file that is
synced after its rename, or never, may be empty after a power failure.
"""

import json
import os
import stat

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.checkpoint.step_capture import CapturedPart, CaptureInfo, StepCapture, write_captured
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.data.sources.tfrecords.write import write_tfrecords
from phalanx.keras_compat.atomic_writes import atomic_path, atomic_save_patch
from phalanx.launcher.run_dir import RUN_FILE, write_run_file
from phalanx.monitoring.durable_files import move_durably, write_durably


@pytest.fixture
def disk(monkeypatch):
    """What reached the disk, in order: ("sync" or "rename", name)."""
    steps = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        steps.append(("sync", path, os.fstat(descriptor).st_size))
        fsync(descriptor)

    def renamed(source, target):
        steps.append(("rename", os.path.abspath(source), os.path.abspath(target)))
        replace(source, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.replace", renamed)
    return steps


def assert_durable(steps, target):
    """The bytes of what was renamed to `target` were synced before, its directory after."""
    (at,) = [i for i, step in enumerate(steps) if step[0] == "rename" and step[2] == str(target)]
    temporary = steps[at][1]
    before = {path: size for _, path, size in steps[:at] if path.startswith(temporary)}
    files = [target] if target.is_file() else [p for p in target.rglob("*") if p.is_file()]
    for file in files:
        own = temporary if file == target else f"{temporary}/{file.relative_to(target)}"
        assert before.get(own) == file.stat().st_size, f"{file.name} was not synced as a whole"
    if target.is_dir():
        assert temporary in before, "the entries of the directory itself"
    assert ("sync", str(target.parent)) in [step[:2] for step in steps[at + 1 :]]


def write_run_json(folder):
    write_run_file(folder, {"name": "first"})
    assert json.loads((folder / RUN_FILE).read_text()) == {"name": "first"}
    return folder / RUN_FILE


def save_model(folder):
    with atomic_save_patch:
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(folder / "m.keras")
    return folder / "m.keras"


def save_weights(folder):
    with atomic_save_patch:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.save_weights(folder / "m.weights.h5")
    return folder / "m.weights.h5"


def write_shard(folder):
    StorageDir.at(folder / "step").write("shard-0", b"weights")
    return folder / "step" / "shard-0"


def capture_step(folder):
    about = StepCapture(
        rank=0, step=3, replicas=1, total=2, variable="", policy="raise", loss_scale=1.0,
        parts=(CapturedPart(replica=0, count=2, start=0),),
    )  # fmt: skip
    batches = ((np.ones((2, 1), "float32"),),)
    info = CaptureInfo(about=about, batches=batches, weights={"w": np.ones(3)}, paths={}, config={})
    return write_captured(folder, info)


def write_records(folder):
    (file,) = write_tfrecords({"x": np.ones((2, 2))}, str(folder / "data"))
    return type(folder)(file)


@pytest.mark.parametrize(
    "write", [write_run_json, save_model, save_weights, write_shard, capture_step, write_records]
)
def test_bytes_reach_the_disk_before_the_name(tmp_path, disk, write):
    assert_durable(disk, write(tmp_path))
    assert not list(tmp_path.rglob("*.part"))


def test_a_disk_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_durably(path, "before")

    def fails(descriptor):
        raise OSError("disk")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="disk"):
        write_durably(path, b"after")
    with pytest.raises(OSError, match="disk"), atomic_path(str(path)) as temporary:
        open(temporary, "w").close()
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_a_file_system_that_cannot_sync_directories_is_enough(tmp_path, monkeypatch):
    fsync = os.fsync

    def of_files_alone(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError("not supported")
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", of_files_alone)
    write_durably(tmp_path / "a", b"1")
    (tmp_path / "b.part").write_bytes(b"2")
    move_durably(tmp_path / "b.part", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"2"


def test_a_file_may_be_for_this_user_alone(tmp_path):
    write_durably(tmp_path / "a", "secret", mode=0o600)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert tf.io.gfile.exists(str(tmp_path / "a"))
