"""Who gets a lease, who has to wait, and what a replaced owner can still do."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.lease_storage import Client, Shared

from phalanx.errors import LeaseLostError, UnavailableError
from phalanx.lease.lease import LeaseTimes, acquire
from phalanx.lease.lease_dir import LocalLeaseDir, link_part
from phalanx.lease.owner import Owner, ProcessTable, this_process
from phalanx.lease.records import CommitId, head_of, numbers_in, record_name


class Time:
    """A clock that runs while somebody sleeps; `at` does something at a moment."""

    def __init__(self):
        self.now = 0.0
        self.at = {}

    def sleep(self, seconds):
        self.now += seconds
        for moment in sorted(self.at):
            if moment <= self.now:
                self.at.pop(moment)()

    @property
    def times(self):
        return LeaseTimes(clock=lambda: self.now, sleep=self.sleep)


def owner(pid=1, host="a", token=None, **requested):
    known = {"boot": f"boot-{host}", "pid_namespace": "pid:[1]", "started": "5"}
    return Owner(host=host, pid=pid, token=token or f"{host}{pid}", **{**known, **requested})


class Machines:
    """Processes by id, as every host sees its own."""

    def __init__(self):
        self.started = {}
        self.table = ProcessTable(start_of=self.started.get)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def machines():
    return Machines()


@pytest.fixture
def shared():
    return Shared()


@pytest.fixture
def take(shared, time, machines):
    def take(who, client=None, **requested):
        return acquire(
            client or Client(shared),
            who,
            what="the run x",
            advice="Wait for it.",
            processes=machines.table,
            times=time.times,
            **requested,
        )

    return take


def test_the_first_owner_gets_number_one(take, shared):
    lease = take(owner())
    assert lease.fence == 1
    assert sorted(shared.files) == [record_name(1)]
    assert lease.check().fence == 2


def test_an_owner_that_lives_on_this_machine_is_named(take, machines, time):
    take(owner(pid=7))
    machines.started[7] = "5"
    with pytest.raises(UnavailableError, match="process 7 on host a is using the run x"):
        take(owner(pid=8))
    assert time.now == 0.0


@pytest.mark.parametrize("start", [None, "6"], ids=["ended", "its id was given away"])
def test_an_owner_that_is_dead_on_this_machine_is_replaced_at_once(start, take, machines, time):
    first = take(owner(pid=7))
    machines.started[7] = start
    second = take(owner(pid=8))
    assert (second.fence, second.id, time.now) == (2, first.id, 0.0)
    with pytest.raises(LeaseLostError, match="process 8 on host a has taken over the run x"):
        first.check()


@pytest.mark.parametrize(
    "other",
    [owner(host="b"), owner(pid_namespace="pid:[2]"), owner(boot="later"), owner(boot="")],
    ids=["host", "container", "boot", "no boot id"],
)
def test_a_process_that_this_machine_does_not_see_is_waited_for(other, take, time):
    """A process id of another namespace says nothing, whatever the table here has."""
    output = []
    take(replace(other, token="other"))
    took = take(owner(pid=8), announce=output.append)
    assert took.fence == 2
    assert time.now == 60.0
    assert output == [
        f"{other} was using the run x: waiting up to 60 s to see whether it still does"
    ]


def test_an_owner_on_another_host_that_renews_keeps_it(take, time):
    theirs = take(owner(host="b"))
    time.at[20.0] = theirs.renew
    with pytest.raises(UnavailableError, match="process 1 on host b is using"):
        take(owner(host="a"))
    assert time.now == 20.0


def test_a_commit_is_a_sign_of_life(take, time):
    theirs = take(owner(host="b"))
    time.at[20.0] = lambda: theirs.confirm(theirs.check())
    with pytest.raises(UnavailableError, match="on host b"):
        take(owner(host="a"))


def test_a_released_lease_is_free(take, time):
    theirs = take(owner(host="b"))
    theirs.release()
    assert take(owner(host="a")).fence == 2
    assert time.now == 0.0
    with pytest.raises(LeaseLostError, match="has released"):
        theirs.check()


def test_the_next_attempt_of_a_run_replaces_the_one_before_on_any_host(take, time, machines):
    first = take(owner(host="b", run="r", attempt=0))
    second = take(owner(host="a", run="r", attempt=1))
    assert time.now == 0.0
    with pytest.raises(LeaseLostError):
        first.confirm(CommitId(lease=first.id, fence=2, token="b1"))
    time.at[5.0] = second.renew
    with pytest.raises(UnavailableError):  # a late worker of the attempt before
        take(owner(host="b", run="r", attempt=0))


def test_a_process_takes_up_what_it_has_released(take, shared):
    lease = take(owner())
    lease.release()
    assert lease.reopen()
    assert head_of(Client(shared)).owners == ((1, "a1"),)
    lease.confirm(lease.check())
    lease.release()
    take(owner(host="b"))
    assert not lease.reopen()


def test_one_of_two_processes_that_start_together_gets_the_lease(take, shared, machines):
    """Both see the dead owner; storage gives the number to one."""
    take(owner(pid=7))

    class Slower(Client):
        def create(self, name, content):
            if 10 not in machines.started:
                machines.started[10] = "5"
                take(owner(pid=10))
            return super().create(name, content)

    with pytest.raises(UnavailableError, match="process 10 on host a"):
        take(owner(pid=9), client=Slower(shared))
    assert head_of(Client(shared)).fence == 2


def test_a_lost_answer_is_no_lost_lease(take, shared):
    lease = take(owner())
    first = lease.check()
    real = lease._directory.create

    def create(name, content):
        real(name, content)
        raise OSError("the answer was lost")

    lease._directory.create = create
    with pytest.raises(OSError, match="answer"):
        lease.confirm(first)
    lease._directory.create = real
    lease.confirm(first)
    lease.confirm(first)
    assert lease.fence == 2
    assert head_of(Client(shared)).accepts(first)


def test_records_of_long_ago_are_removed(take, shared):
    lease = take(owner())
    ids = []
    for _ in range(30):
        ids.append(lease.check())
        lease.confirm(ids[-1])
    head = head_of(Client(shared))
    assert numbers_in(Client(shared)) == list(range(31, 23, -1))
    assert all(head.accepts(each) for each in ids)
    assert not head.accepts(CommitId(lease=lease.id, fence=32, token="a1"))
    assert not head.accepts(CommitId(lease=lease.id, fence=9, token="somebody else's"))
    assert head.accepts(CommitId(lease="of a directory that was copied", fence=99, token="a1"))


def test_a_damaged_record_hides_no_commit(take, shared, time):
    lease = take(owner())
    commits = []
    for _ in range(3):
        commits.append(lease.check())
        lease.confirm(commits[-1])
    shared.files[record_name(4)] = b"{"
    head = head_of(Client(shared))
    assert head.owner is None
    assert all(head.accepts(each) for each in commits)
    assert take(owner(pid=2)).fence == 5
    assert time.now == 60.0  # the owner is unknown


def test_a_directory_that_was_removed_is_not_made_again_by_a_renewal(take, shared):
    lease = take(owner())
    shared.files.clear()
    shared.changed()
    lease.renew()
    assert shared.files == {}
    lease.confirm(lease.check())
    assert numbers_in(Client(shared)) == [2]


def test_storage_that_overwrites_is_reported(take, shared, caplog):
    class Overwriting(Client):
        def create(self, name, content):
            self.shared.files[name] = content
            self.shared.changed()
            return True

    take(owner(), client=Overwriting(shared))
    assert "overwrites files that exist" in caplog.text


def test_a_disk_that_fills_up_after_the_record_does_not_take_the_lease_away(take, shared):
    class FullAfterOne(Client):
        def create(self, name, content):
            if name in self.shared.files:
                raise OSError(28, "No space left on device")
            return super().create(name, content)

    lease = take(owner(), client=FullAfterOne(shared))
    assert lease.fence == 1
    lease.check()


def test_a_process_that_tries_again_after_an_error_has_what_it_took(take, shared, machines):
    class LosesAnswers(Client):
        def create(self, name, content):
            super().create(name, content)
            raise OSError("the answer was lost")

        def read(self, name):
            raise OSError("storage is away")

    machines.started[1] = "5"
    with pytest.raises(OSError, match="away"):
        take(owner(), client=LosesAnswers(shared))
    lease = take(owner())
    assert lease.fence == 1
    lease.confirm(lease.check())
    with pytest.raises(UnavailableError, match="process 1 on host a"):
        take(owner(token="another training"))


def test_a_fork_does_not_own_what_its_parent_does(take):
    lease = take(owner())
    lease._process -= 1
    with pytest.raises(LeaseLostError):
        lease.check()
    lease.release()
    lease._process += 1
    lease.check()


@pytest.mark.process
def test_this_process_is_alive_and_an_ended_one_is_not():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    zombie = replace(this_process(), pid=ended.pid)
    me = this_process()
    assert me.sees(me)
    assert ProcessTable().is_alive(me)
    assert not ProcessTable().is_alive(replace(me, started="1"))
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not ProcessTable().is_alive(zombie)  # it has ended, its parent has not looked
    ended.wait()
    assert not ProcessTable().is_alive(zombie)


def test_one_of_many_threads_gets_a_name(tmp_path):
    won = []
    start = threading.Barrier(8)

    def race(number):
        part = tmp_path / f"part-{number}"
        part.write_text(str(number))
        start.wait()
        if link_part(part, tmp_path / "it"):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "it").read_text() == str(won[0])
    assert len(won) == 1
    assert os.listdir(tmp_path) == ["it"]


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    folder = LocalLeaseDir(tmp_path)
    assert folder.create("a", b"1")
    assert not folder.create("a", b"2")
    assert folder.read("a") == b"1"
    assert folder.names() == ["a"]


def test_the_thread_renews_until_the_end(tmp_path):
    folder = LocalLeaseDir(tmp_path / ".lease")
    times = LeaseTimes(renew=0.01)
    lease = acquire(folder, this_process(), what="it", advice="", times=times)
    lease.keep_renewed(times)
    name = f"renewed-{lease.owner.token}"
    while name not in folder.names() or int(folder.read(name)) < 3:
        pass
    lease.release()
    assert folder.read(name) == b"released"


class Writer:
    """A process that publishes and confirms in steps, between which others can run."""

    def __init__(self, lease, published, client):
        self.lease, self.published, self.client = lease, published, client
        self.pending = None
        self.confirmed = []
        self.lost = False

    def step(self):
        try:
            if self.pending is None:
                self.pending = (self.lease.check(), False)
            elif not self.pending[1]:
                self.published.append(self.pending[0])
                self.pending = (self.pending[0], True)
            else:
                commit = self.pending[0]
                self.lease.confirm(commit)
                self.confirmed.append(commit)
                self.pending = None
        except LeaseLostError:
            self.lost = True
        except OSError:
            pass  # it tries again


def insist(action):
    while True:
        try:
            return action()
        except OSError:
            pass


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from([0.0, 0.1, 0.3]),
    moves=st.lists(st.sampled_from(["old", "new", "take over"]), min_size=10, max_size=60),
)
def test_a_replaced_owners_commit_never_counts(seed, faults, moves):
    """Any order of the steps of old and new owners, on an NFS that answers late and wrongly."""
    shared, time, published, writers = Shared(), Time(), [], []
    counted = {}  # of each owner that was replaced, what counted at that moment

    def accepted():
        head = head_of(Client(shared))
        return {str(commit) for commit in published if head.accepts(commit)}

    def take_over():
        number = len(writers)
        client = Client(shared, seed + number, faults=faults)
        who = owner(host=f"h{number}", run="r", attempt=number)
        lease = insist(
            lambda: acquire(
                client, who, what="it", advice="", processes=Machines().table, times=time.times
            )
        )
        if writers:
            counted[writers[-1].lease.owner.token] = accepted()
        writers.append(Writer(lease, published, client))

    take_over()
    for move in moves:
        if move == "take over":
            take_over()
        elif move == "new":
            writers[-1].step()
        else:
            for writer in writers[:-1]:
                writer.step()
        # What was reported to its writer as committed counts; a replaced one adds nothing.
        assert {str(commit) for writer in writers for commit in writer.confirmed} <= accepted()
        for token, then in counted.items():
            assert {each for each in accepted() if each.endswith(token)} <= then
        assert not writers[-1].lost
