"""One writer for a checkpoint directory: two processes on a disk, two clients of S3."""

import signal
import subprocess
import sys
import uuid
from dataclasses import replace

import numpy as np
import pytest

from phalanx.checkpoint.fencing import held
from phalanx.checkpoint.history import steps_in
from phalanx.checkpoint.reader import latest, verify
from phalanx.checkpoint.retry import RetryPolicy
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter, Snapshot
from phalanx.errors import LeaseLostError, UnavailableError
from phalanx.lease.lease import LeaseTimes, acquire
from phalanx.lease.owner import this_process
from phalanx.lease.records import LEASE_DIR, head_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ONCE = RetryPolicy(max_retries=0)
QUICK = LeaseTimes(expire=0.5, poll=0.05)


def snapshot(step):
    return Snapshot(step=step, epoch=0, arrays={"kernel": np.full((5, 3), float(step))})


def writer_of(folder, lease, attempt="0"):
    return ShardWriter(folder=folder, lease=lease, attempt=attempt, retry_policy=ONCE)


WRITER = """
import sys
from dataclasses import replace

import numpy as np

from phalanx.checkpoint import fencing
from phalanx.checkpoint.storage_dir import StorageDir
from phalanx.checkpoint.writer import ShardWriter, Snapshot
from phalanx.lease.owner import this_process

host = sys.argv[2]
if host:
    fencing.this_process = lambda **asked: replace(this_process(**asked), host=host)
folder = StorageDir.at(sys.argv[1])
with fencing.held(folder) as lease:
    writer = ShardWriter(folder=folder, lease=lease, attempt="theirs")
    writer.write(Snapshot(step=1, epoch=0, arrays={"kernel": np.ones((5, 3))}))
    print("wrote 1", flush=True)
    for step in map(int, sys.stdin):
        try:
            writer.write(Snapshot(step=step, epoch=0, arrays={"kernel": np.ones((5, 3))}))
            print("wrote", step, flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
"""


class OtherProcess:
    """Writes the step that it is given, to a directory that it has taken."""

    def __init__(self, directory, host=""):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.output = self.process.stdout.readline()

    def write(self, step):
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_a_writer_that_lives_is_not_joined_and_a_dead_one_is_replaced_at_once(tmp_path):
    folder = StorageDir.at(tmp_path / "checkpoints")
    with OtherProcess(folder) as other:
        assert other.output == "wrote 1\n"
        with (
            pytest.raises(UnavailableError, match=f"process {other.process.pid} on host"),
            held(folder),
        ):
            pass
        assert latest(folder).manifest.step == 1  # readers need no lease
        assert other.write(2) == "wrote 2\n"
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()
        with held(folder) as lease:  # a wait would be of 60 s
            writer_of(folder, lease).write(snapshot(3))
    assert steps_in(folder) == [1, 2, 3]


def test_a_writer_of_another_host_that_was_away_commits_nothing(tmp_path):
    """Frozen, taken for dead after a while without a renewal, and then awake again."""
    folder = StorageDir.at(tmp_path / "checkpoints")
    with OtherProcess(folder, host="elsewhere") as other:
        other.process.send_signal(signal.SIGSTOP)
        with held(folder, times=QUICK) as lease:
            writer_of(folder, lease).write(snapshot(2))
            other.process.send_signal(signal.SIGCONT)
            assert other.write(3).startswith("LeaseLostError process ")
            assert latest(folder).manifest.step == 2
            writer_of(folder, lease).write(snapshot(4))
    assert steps_in(folder) == [1, 2, 4]


def replaced(folder):
    """Two owners on two hosts, the first of which the second has replaced."""
    place = folder / LEASE_DIR
    old = replace(this_process(run="r", attempt=0), host="a")
    new = replace(this_process(run="r", attempt=1), host="b")
    first = acquire(place, old, what="it", advice="")
    return first, lambda: acquire(place, new, what="it", advice="")


@pytest.fixture(params=["disk", "moto"])
def folder(request, tmp_path):
    if request.param == "disk":
        return StorageDir.at(tmp_path / "checkpoints")
    return request.getfixturevalue(request.param).folder(uuid.uuid4().hex)


@pytest.mark.parametrize("moment", ["before it looks", "before it publishes", "before it confirms"])
@pytest.mark.parametrize("same_step", [True, False])
def test_a_writer_that_is_replaced_at_any_moment(moment, same_step, folder, monkeypatch):
    first, take_over = replaced(folder)
    writer_of(folder, first).write(snapshot(1))
    second = []
    own = 2 if same_step else 3

    def replace_it():
        if not second:
            second.append(take_over())
            writer_of(folder, second[0], attempt="new").write(snapshot(own))

    def before(action):
        def run(*arguments):
            replace_it()
            return action(*arguments)

        return run

    if moment == "before it looks":
        monkeypatch.setattr(first, "check", before(first.check))
    elif moment == "before it confirms":
        monkeypatch.setattr(first, "confirm", before(first.confirm))
    else:
        look = first.check

        def check():
            commit = look()
            replace_it()
            return commit

        monkeypatch.setattr(first, "check", check)
    with pytest.raises(LeaseLostError, match="has taken over"):
        writer_of(folder, first, attempt="old").write(snapshot(2))
    if moment == "before it confirms" and same_step:
        # Both have published step 2: the one that came last has overwritten the other's.
        assert steps_in(folder)[-1] == 2
        assert latest(folder).manifest.lease.endswith(second[0].owner.token)
    else:
        assert steps_in(folder) == [1, own]
    writer_of(folder, second[0], attempt="new").write(snapshot(9))
    assert latest(folder).manifest.step == 9
    assert set(dict(verify(folder)).values()) == {None}


def test_a_manifest_without_its_confirmation_is_no_checkpoint(folder, monkeypatch):
    """The chief was killed between the two; what it never said was done does not count."""
    lease = acquire(folder / LEASE_DIR, this_process(), what="it", advice="")
    writer_of(folder, lease).write(snapshot(1))
    monkeypatch.setattr(lease, "confirm", lambda commit: None)
    writer_of(folder, lease).write(snapshot(2))
    assert steps_in(folder) == [1]
    assert latest(folder).manifest.step == 1


def test_several_of_one_process_share_and_a_copy_counts(folder):
    with held(folder) as lease:
        with held(folder) as other:
            assert other is lease
        writer_of(folder, lease).write(snapshot(1))
    with held(folder) as again:
        writer_of(folder, again).write(snapshot(2))
    assert len(head_of(folder / LEASE_DIR).owners) == 1
    folder.remove(LEASE_DIR)
    assert steps_in(folder) == [1, 2]
    with held(folder) as new:
        assert new is not again
        assert steps_in(folder) == [1, 2]


@pytest.mark.parametrize("store", ["disk", "memory", "moto"])
def test_a_file_is_created_once(store, request, tmp_path):
    where = {
        "disk": lambda: StorageDir.at(tmp_path / "a"),
        "memory": lambda: StorageDir.at(f"memory://{uuid.uuid4().hex}"),
        "moto": lambda: request.getfixturevalue("moto").folder(uuid.uuid4().hex),
    }[store]()
    assert where.create("it", b"1")
    assert not where.create("it", b"2")
    assert where.read("it") == b"1"
    assert where.names() == ["it"]


def test_a_server_that_ignores_the_condition_is_reported(rclone, caplog):
    folder = rclone.folder(uuid.uuid4().hex)
    with held(folder) as lease:
        writer_of(folder, lease).write(snapshot(1))
    assert steps_in(folder) == [1]
    first, second = folder.create("it", b"1"), folder.create("it", b"2")
    assert first
    assert ("overwrites files that exist" in caplog.text) == second
