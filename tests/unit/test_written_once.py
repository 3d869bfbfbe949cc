"""Who writes what all workers would: decided by what the chief has noted, without a collective."""

import threading

import pytest

from phalanx.launcher.run_layout import AttemptPaths
from phalanx.worker.written_once import TIMEOUT, TIMEOUT_ELSEWHERE, WrittenOnce


class Clock:
    """Time that passes while somebody sleeps; `then` happens at times."""

    def __init__(self):
        self.now = 0.0
        self.then = {}

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for at in [at for at in self.then if at <= self.now]:
            self.then.pop(at)()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def workers(tmp_path, clock):
    """The chief and another worker, which write their names into a list."""
    paths = AttemptPaths(run=tmp_path, attempt=0)
    paths.directory.mkdir(parents=True)
    return [
        WrittenOnce(paths, is_chief=is_chief, clock=clock, sleep=clock.sleep)
        for is_chief in (True, False)
    ]


def write(worker, written, name, path="dir/ckpt-1", kind="checkpoint"):
    return worker.write(kind, path, lambda: written.append(name) or name, lambda: "nothing")


def test_what_the_chief_has_written_no_one_writes_again(workers, clock):
    written = []
    assert write(workers[0], written, "chief") == "chief"
    assert write(workers[1], written, "other") == "nothing"
    assert (written, clock.now) == (["chief"], 0)


def test_a_worker_waits_for_the_chief_each_time(workers, clock):
    written = []
    write(workers[0], written, "chief")
    write(workers[1], written, "other")
    clock.then[3.0] = lambda: write(workers[0], written, "chief")
    assert write(workers[1], written, "other") == "nothing"
    assert written == ["chief", "chief"]


def test_a_path_of_its_own_is_waited_for_once(workers, clock):
    written = []
    write(workers[0], written, "chief", "dir/ckpt-1")
    assert write(workers[1], written, "other", "dir/own/ckpt-1") == "other"
    waited = clock.now
    assert waited == pytest.approx(TIMEOUT_ELSEWHERE, abs=0.2)
    assert write(workers[1], written, "other", "dir/own/ckpt-2") == "other"
    assert clock.now == waited


def test_a_worker_writes_alone_where_the_chief_does_not_come(workers, clock):
    written = []
    assert write(workers[1], written, "other") == "other"
    assert clock.now == pytest.approx(TIMEOUT, abs=0.2)
    write(workers[0], written, "chief")  # late
    clock.then[clock.now + 3] = lambda: write(workers[0], written, "chief", "dir/ckpt-2")
    assert write(workers[1], written, "other", "dir/ckpt-2") == "nothing"


def test_where_the_chief_fails_the_others_try(workers):
    def fail():
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        workers[0].write("checkpoint", "a", fail, fail)
    with pytest.raises(OSError, match="disk is full"):
        workers[1].write("checkpoint", "a", fail, lambda: "nothing")


def test_a_chief_that_writes_is_waited_for_however_long(workers, clock):
    started, restore, written = threading.Event(), threading.Event(), []

    def slowly():
        started.set()
        restore.wait(60)
        written.append("chief")

    chief = threading.Thread(target=workers[0].write, args=("checkpoint", "a", slowly, slowly))
    chief.start()
    started.wait(60)

    def end():
        restore.set()
        chief.join()

    clock.then[10 * TIMEOUT] = end
    assert write(workers[1], written, "other", "a") == "nothing"
    assert written == ["chief"]


def test_kinds_are_distinguished(workers):
    written = []
    write(workers[0], written, "chief", kind="summaries")
    assert write(workers[1], written, "other", kind="checkpoint") == "other"
