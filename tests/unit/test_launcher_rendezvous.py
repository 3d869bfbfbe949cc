"""Launchers on several hosts: two processes' worth of them in threads, with stand-in workers."""

import io
import json
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from phalanx.cluster.debug_options import DebugOptions
from phalanx.cluster.exit_codes import EXIT_NODE_LOST
from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.cluster.spec import DeviceSpec, WorkerSpec
from phalanx.errors import ConfigurationError, LaunchError, UnavailableError
from phalanx.launcher.context import LaunchContext
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.channel import Channel
from phalanx.launcher.rendezvous.client import RendezvousClient
from phalanx.launcher.rendezvous.follower import RendezvousFollower
from phalanx.launcher.rendezvous.identity import CommandIdentity
from phalanx.launcher.rendezvous.leader import Leader
from phalanx.launcher.rendezvous.node import LocalNode, allocate_addresses
from phalanx.launcher.rendezvous.remote_node import RemoteNode, RemoteWorker
from phalanx.launcher.rendezvous.store import RendezvousInfo, rendezvous_path
from phalanx.launcher.resources import Machine, allocate_over_nodes
from phalanx.launcher.run import run
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.launcher.showing import Showing
from phalanx.launcher.signals import SignalCatcher
from phalanx.launcher.supervisor import MonotonicClock, Timeouts

HERE = ClusterEnvironment(
    hosts=("127.0.0.1", "localhost"), index=0, kind="hosts", why="a test", job="t"
)
THERE = replace(HERE, index=1)
VERSIONS = {"keras": "3"}
PRELUDE = """
import os, signal, sys, time
from pathlib import Path
from phalanx.cluster.spec import DeviceSpec, WorkerSpec
spec = WorkerSpec.from_environment(os.environ)
print("worker", spec.rank, "of", spec.world_size, "at", spec.addresses[spec.rank], flush=True)
def until(condition):
    while not condition(): time.sleep(0.05)
"""


def channels(**options):
    ours, theirs = Pipe()
    return Channel(ours, **options), Channel(theirs, **options)


def test_a_message_arrives_at_the_other_end():
    one, other = channels()
    one.send({"do": "start", "ports": [1, 2]})
    assert other.receive(5.0) == {"do": "start", "ports": [1, 2]}
    assert other.receive() is None
    other.close()
    one.close()


def test_a_channel_is_lost_when_the_other_end_closes():
    one, other = channels(beat=0.01)
    other.close()
    wait(lambda: one.is_lost)
    one.send({"do": "nothing"})  # and no one is hurt


def test_a_channel_without_heartbeats_is_lost():
    ours, theirs = Pipe()
    one = Channel(ours, silence=0.1)
    wait(lambda: one.is_lost)
    theirs.close()


class Stopped:
    """A connection of a process that is stopped within some of its waits."""

    def __init__(self, waits):
        self.waits, self.waited = list(waits), []

    def poll(self, seconds):
        self.waited.append(seconds)
        return bool(self.waits) and self.waits.pop(0)

    def recv_bytes(self, maxlength):
        return b"{}"

    def send_bytes(self, content):
        pass

    def close(self):
        pass


def test_a_channel_counts_a_wait_once_if_the_process_is_stopped_meanwhile():
    # Nine waits of 2 s without a sign of life, each as long as one likes; then a sign.
    connection = Stopped([*[False] * 9, True])
    one = Channel(connection, beat=2.0, silence=20.0)
    wait(lambda: one.is_lost)
    assert connection.waited == [2.0] * 20


def wait(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_only_this_user_can_read_the_rendezvous_file(tmp_path):
    path = rendezvous_path(tmp_path, HERE)
    assert path == rendezvous_path(tmp_path, THERE)
    assert path != rendezvous_path(tmp_path, replace(HERE, job="another"))
    assert rendezvous_path(tmp_path, HERE, "a") == rendezvous_path(tmp_path, THERE, "a")
    assert len({path, *(rendezvous_path(tmp_path, HERE, name) for name in ("a", "b"))}) == 3
    RendezvousInfo(host="a", port=7, token="00ff").write(path)
    assert path.stat().st_mode & 0o077 == 0
    # Several users can share the directory of all runs: each has only files of their own there.
    assert list(tmp_path.iterdir()) == [path]
    assert RendezvousInfo.read(path) == RendezvousInfo(host="a", port=7, token="00ff")
    path.write_text("{")
    assert RendezvousInfo.read(path) is None


class Two:
    """A leader, and what a follower needs."""

    def __init__(self, root, **options):
        self.root, self.printed = root, []
        self.leader = Leader(
            HERE,
            root,
            versions=VERSIONS,
            clock=MonotonicClock(),
            announce=self.printed.append,
            **options,
        )

    def follower(self, node_group=THERE, versions=VERSIONS, **options):
        node = LocalNode(command=(sys.executable, "-c", ""), environment=os.environ)
        signals, clock, announce = SignalCatcher(()), MonotonicClock(), self.printed.append
        client = RendezvousClient(
            node_group,
            self.root,
            machine=Machine(cores=3, gpus=("0",)),
            versions=versions,
            signals=signals,
            clock=clock,
            announce=announce,
            **options,
        )
        return RendezvousFollower(
            client, self.root, node, signals=signals, clock=clock, announce=announce
        )


def test_a_leader_removes_only_its_own_rendezvous_file(tmp_path):
    path, options = rendezvous_path(tmp_path, HERE), {"clock": MonotonicClock(), "announce": print}
    with Leader(HERE, tmp_path, versions=VERSIONS, **options):
        with Leader(HERE, tmp_path, versions=VERSIONS, **options) as later:
            pass
        assert not path.exists()
        later.info.write(path)
    assert RendezvousInfo.read(path) == later.info


def test_two_named_runs_use_the_same_hosts_at_once(tmp_path):
    runs = [Two(tmp_path, name=name) for name in ("a", "b")]
    with ThreadPoolExecutor() as pool:
        following = [pool.submit(runs[i].follower(name=name).run) for i, name in enumerate("ab")]
        for each in runs:
            each.leader.gather()
        with runs[0].leader:
            runs[0].leader.end(1, "a")
        assert RendezvousInfo.read(rendezvous_path(tmp_path, HERE, "b")) == runs[1].leader.info
        runs[1].leader.end(2, "b")
        assert [each.result(60).report for each in following] == ["a", "b"]


def test_a_launcher_that_does_not_connect_is_named(tmp_path):
    two = Two(tmp_path, rendezvous_timeout=0.3)
    with pytest.raises(UnavailableError, match=r"on localhost \(1\); found no sign") as caught:
        two.leader.gather()
    assert caught.value.exit_code == 69  # It may be there later: the command itself is right.
    assert "--rendezvous-timeout" in str(caught.value)


def test_a_follower_that_finds_no_leader_says_where_it_looked(tmp_path):
    two = Two(tmp_path)
    rendezvous_path(tmp_path, HERE).unlink()
    with pytest.raises(UnavailableError, match="found no such file") as caught:
        two.follower(rendezvous_timeout=0.3).run()
    assert str(rendezvous_path(tmp_path, HERE)) in str(caught.value)


@pytest.mark.parametrize(
    ("node_group", "versions", "why"),
    [
        (THERE, {"keras": "4"}, "keras 4 there and 3 on the first host"),
        (HERE, VERSIONS, "its index must be 1 to 1; found 0"),
    ],
)
def test_a_launcher_that_does_not_match_is_rejected_on_both_sides(
    tmp_path, node_group, versions, why
):
    two = Two(tmp_path, rendezvous_timeout=1.0)
    with pytest.raises(LaunchError, match=why) as refused:
        two.follower(node_group, versions).run()
    assert refused.value.exit_code == 2
    if node_group is THERE:
        with pytest.raises(LaunchError, match=why):
            two.leader.gather()


def identity(root, script="train.py", source="pass", **options):
    path = root / script
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return CommandIdentity.of(RunOptions(target=str(path), **options))


DIFFERENCES = {
    "the script differs": {"script": "other.py"},
    "the script's contents differ": {"source": "print()"},
    "the script's arguments differ": {"arguments": ("--lr", "2", "--api-key", "s3cr3t")},
    "--workers differs": {"workers": 4},
    "--strategy differs": {"strategy": "horovod"},
    "--seed differs": {"seed": 2},
    "--devices-per-worker differs": {"devices": DeviceSpec(count=2, kind="cpu")},
    "the options for debugging and profiling differ": {"switches": DebugOptions(trial_batches=1)},
    "the variables of --env and --env-from differ": {"env": {"KEY": "s3cr3t"}},
}
GIVEN = {"arguments": ("--lr", "1", "--api-key", "s3cr3t-too"), "env": {"KEY": "s3cr3t-too"}}


@pytest.mark.parametrize(("what", "requested"), DIFFERENCES.items(), ids=DIFFERENCES)
def test_a_launcher_of_another_command_is_rejected_and_both_name_the_part(
    tmp_path, what, requested
):
    own = identity(tmp_path / "a", **GIVEN)
    two = Two(tmp_path, rendezvous_timeout=1.0, identity=own)
    other = identity(tmp_path / "b", **{**GIVEN, **requested})
    with pytest.raises(LaunchError, match=what) as refused:
        two.follower(identity=other).run()
    with pytest.raises(LaunchError, match=what) as waited:
        two.leader.gather()
    assert any(
        "rejected the launcher with index 1" in line and what in line for line in two.printed
    )
    printed = "\n".join([str(refused.value), str(waited.value), *two.printed])
    assert "s3cr3t" not in printed
    for other_part in DIFFERENCES:
        assert other_part == what or other_part not in printed
    sent = json.dumps(other.hashes(two.leader.info.key))
    assert "s3cr3t" not in sent


def test_launchers_may_differ_in_options_of_their_own_host(tmp_path):
    own = identity(tmp_path / "a", tee="all", max_restarts=1, hang_timeout=3.0, run_dir=tmp_path)
    other = identity(tmp_path / "b", tee="none", grace_period=5.0, rendezvous_timeout=9.0)
    two = Two(tmp_path, identity=own)
    with ThreadPoolExecutor() as pool:
        following = pool.submit(two.follower(identity=other).run)
        two.leader.gather()
        two.leader.end(0, None)
        assert following.result(60).code == 0


def test_a_hash_depends_on_the_token_and_on_the_part(tmp_path):
    one = identity(tmp_path, script="same", source="same")
    hashes = one.hashes(b"key")
    assert hashes == identity(tmp_path, script="same", source="same").hashes(b"key")
    assert not set(hashes.values()) & set(one.hashes(b"other").values())
    assert hashes["the script"] != hashes["the script's contents"]


def test_a_script_s_name_may_be_any_bytes(tmp_path):
    name = os.fsdecode(b"\xff.py")
    assert identity(tmp_path, script=name).hashes(b"key")


def test_a_module_s_contents_are_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package_of_this_test").mkdir()
    main = tmp_path / "package_of_this_test" / "__main__.py"
    (main.parent / "__init__.py").touch()
    made = []
    for source in ("pass", "print()"):
        main.write_text(source)
        made.append(CommandIdentity.of(RunOptions(target="package_of_this_test", as_module=True)))
    assert made[0].difference(b"k", made[1].hashes(b"k")) == ["the script's contents"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigurationError("no"), 2), (UnavailableError("no"), 69), (RuntimeError("no"), 1)],
)
def test_followers_end_with_the_exit_code_of_the_leaders_error(tmp_path, error, code):
    two = Two(tmp_path)
    with ThreadPoolExecutor() as pool:
        following = pool.submit(two.follower().run)
        two.leader.gather()
        with pytest.raises(type(error)), two.leader:
            raise error
        assert following.result(60).code == code


def test_a_launcher_that_connects_after_the_run_looks_for_the_next_leader(tmp_path):
    two = Two(tmp_path, identity=identity(tmp_path))
    two.leader.end(0, None)
    next_one = identity(tmp_path, arguments=("--next",))
    with pytest.raises(LaunchError, match=r"Waited .* its run is over"):
        two.follower(identity=next_one, rendezvous_timeout=0.5).run()


def test_a_connection_without_the_token_is_refused(tmp_path):
    two = Two(tmp_path)
    info = RendezvousInfo.read(rendezvous_path(tmp_path, HERE))
    RendezvousInfo(host=info.host, port=info.port, token="00").write(
        rendezvous_path(tmp_path, HERE)
    )
    with pytest.raises(LaunchError, match="but no launcher that knows this run"):
        two.follower(rendezvous_timeout=0.5).run()


@pytest.mark.parametrize(("off", "words"), [(3600.0, "3600 s ahead of"), (-90.0, "90 s behind")])
def test_a_clock_that_is_off_is_reported_and_decides_nothing(tmp_path, monkeypatch, off, words):
    two = Two(tmp_path)
    follower = two.follower()
    true = time.time
    # The hello's time is the only one that a follower sends.
    monkeypatch.setattr(
        "phalanx.launcher.rendezvous.client.time", SimpleNamespace(time=lambda: true() + off)
    )
    with ThreadPoolExecutor() as pool:
        following = pool.submit(follower.run)
        two.leader.gather()
        two.leader.end(0, None)
        assert following.result(60).code == 0
    (line,) = [line for line in two.printed if "clock" in line]
    assert line.startswith(f"the clock of localhost (1) is {words} this host's: ")


def test_the_first_of_two_launchers_with_one_index_stays(tmp_path):
    two = Two(tmp_path)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(two.follower().run)
        two.leader.gather()
        with pytest.raises(LaunchError, match="there is a launcher with index 1 already"):
            two.follower(rendezvous_timeout=0.5).run()
        two.leader.end(0, None)
        assert first.result(60).code == 0


def test_a_silent_connection_does_not_block_others(tmp_path):
    two = Two(tmp_path)
    silent = socket.create_connection(("127.0.0.1", two.leader.server.port))
    with silent, ThreadPoolExecutor() as pool:
        following = pool.submit(two.follower().run)
        assert two.leader.gather() == [Machine(cores=3, gpus=("0",))]
        two.leader.end(4, "broken")
        assert following.result(60).code == 4


class Scene:
    """Whole runs: the launchers of both hosts in threads of this process."""

    def __init__(self, directory):
        self.directory = directory
        self.script = directory / "train.py"
        self.script.write_text("pass")
        self.outputs = [io.StringIO(), io.StringIO()]
        self.printed = [[], []]

    def launch(self, index, source, **requested):
        context = LaunchContext(
            environment=os.environ,
            machine=Machine(cores=2),
            output=Showing(self.outputs[index]),
            command=lambda *a, **k: (sys.executable, "-c", PRELUDE + source),
            timeouts=Timeouts(poll_interval=0.02, failure_settle=0.5, self_exit=1.0, sigkill=0.5),
            announce=self.printed[index].append,
            node_group=HERE if index == 0 else THERE,
        )
        options = {"tee": "all", "run_dir": self.directory / "runs", "name": "both", **requested}
        return run(RunOptions(target=str(self.script), **options), context)

    def both(self, source, **requested):
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(self.launch, index, source, **requested) for index in (0, 1)]
            return [each.result(120) for each in runs]


@pytest.fixture
def scene(tmp_path, monkeypatch):
    # Signals can be taken in the main thread alone, and these launchers run in others.
    monkeypatch.setattr(SignalCatcher, "__enter__", lambda self: self)
    monkeypatch.setattr(SignalCatcher, "__exit__", lambda self, *_: None)
    return Scene(tmp_path)


@pytest.mark.process
def test_two_launchers_make_one_run(scene):
    first, second = scene.both("", workers=4)
    assert (first.exit_code, second.exit_code) == (0, 0)
    reported = scene.outputs[0].getvalue()
    assert "worker 0 of 4 at 127.0.0.1:" in reported
    assert "worker 3 of 4 at localhost:" in reported
    assert "4 workers on 2 hosts" in scene.printed[0][-1]
    assert scene.printed[1][0] == "hosts: a test"
    assert [path.name for path in (scene.directory / "runs").iterdir()] == ["both"]


@pytest.mark.process
def test_a_failure_on_the_other_host_fails_the_run(scene):
    first, second = scene.both("sys.exit(7 * spec.rank)")
    assert (first.exit_code, second.exit_code) == (7, 7)
    assert "Worker 1 failed first: it ended with exit code 7" in first.report
    assert second.report == first.report


@pytest.mark.process
def test_a_worker_group_on_two_hosts_starts_again(scene):
    source = """
if spec.attempt == 0 and spec.rank == 1: os.kill(os.getpid(), signal.SIGKILL)
if spec.attempt == 0: until(lambda: False)
"""
    first, second = scene.both(source, max_restarts=1)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert any("worker 1 failed: it was killed by SIGKILL" in line for line in scene.printed[0])


@pytest.mark.process
def test_a_lost_host_can_reconnect(scene):
    """The leader's channel to it breaks; its workers end before both begin again together."""
    source = """
import psutil
first = Path(spec.run_dir) / f"first-{spec.rank}"
if spec.attempt == 0:
    first.write_text(str(os.getpid()))
    until(lambda: False)
before = [each for each in psutil.process_iter() if each.pid == int(first.read_text())]
if any(each.status() != psutil.STATUS_ZOMBIE for each in before): sys.exit(9)
"""
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(scene.launch, i, source, max_restarts=2) for i in (0, 1)]
        files = [scene.directory / f"runs/both/first-{rank}" for rank in (0, 1)]
        wait(lambda: all(each.exists() and each.read_text() for each in files))
        close_all_channels()
        assert [each.result(120).exit_code for each in runs] == [0, 0]
    assert any("its host or the launcher there is lost" in line for line in scene.printed[0])
    assert any("the workers here are stopped" in line for line in scene.printed[1])


@pytest.mark.full
@pytest.mark.process
def test_a_run_continues_without_a_host_that_stays_away(scene, monkeypatch):
    join, joined = RendezvousClient.join, []

    def join_once(client):
        if joined:
            raise UnavailableError("lost for good")
        joined.append(client)
        return join(client)

    monkeypatch.setattr(RendezvousClient, "join", join_once)
    source = """
if spec.world_size == 4:
    print("is up", flush=True)
    until(lambda: False)
"""
    options = {"workers": 4, "min_workers": 2, "max_restarts": 2, "rendezvous_timeout": 4}
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(scene.launch, i, source, **options) for i in (0, 1))
        wait(lambda: scene.outputs[0].getvalue().count("is up") == 4)
        close_all_channels()
        assert first.result(120).exit_code == 0
        assert isinstance(second.exception(120), UnavailableError)
    said = "workers 2, 3 cannot restart: continuing with 2 of 4 workers"
    assert said in "\n".join(scene.printed[0])


def close_all_channels():
    import gc

    for channel in [each for each in gc.get_objects() if isinstance(each, Channel)]:
        channel.close()


STANDS = """
from phalanx.launcher.run_layout import AttemptPaths
from phalanx.monitoring.event_log import RecordWriter, records_path
from phalanx.worker.process_exit import dump_stacks_on_request
paths = AttemptPaths(run=Path(spec.run_dir), attempt=spec.attempt)
dump_stacks_on_request(paths.stacks(spec.rank))
ready = paths.directory / "ready"
ready.mkdir(exist_ok=True)
(ready / str(spec.rank)).touch()
until(lambda: len(list(ready.iterdir())) == 2)
writer = RecordWriter(records_path(paths.run, spec.rank), clock=time.time)
writer.write("heartbeat", phase="compute", phase_seconds=0.0, step=3, epoch=0)
until(lambda: False)
"""


@pytest.mark.process
def test_workers_of_all_hosts_write_their_stacks_in_a_hang(scene, monkeypatch):
    # On another host the number is another process's, or no one's, as this one.
    monkeypatch.setattr(RemoteWorker, "pid", property(lambda self: 2**22 + 1))
    first, second = scene.both(STANDS, hang_timeout=1.0)
    assert (first.exit_code, second.exit_code) == (124, 124)
    paths = AttemptPaths(run=first.run_dir, attempt=0)
    for rank in (0, 1):
        assert "Current thread" in paths.stacks(rank).read_text()


class Asked:
    """A worker that notes what reaches it."""

    pid = 2**22 + 1

    def __init__(self):
        self.alone, self.family = [], []

    def poll(self):
        return -signal.SIGKILL if signal.SIGKILL in self.family else None

    def ask(self, number):
        self.alone.append(number)

    def signal(self, number):
        self.family.append(number)


def test_a_follower_signals_the_worker_that_it_started(tmp_path):
    two, workers = Two(tmp_path), [Asked(), Asked()]
    follower = two.follower()
    free = list(workers)
    node = SimpleNamespace(start=lambda spec, gpus: free.pop(0), shutdown_pool=lambda: None)
    follower._node = node
    with ThreadPoolExecutor() as pool:
        following = pool.submit(follower.run)
        two.leader.gather()
        handles = [two.leader.nodes[0].start(each, None) for each in specs(tmp_path)]
        handles[1].ask(signal.SIGUSR2)
        wait(lambda: workers[1].alone)
        two.leader.end(0, None)
        assert following.result(60).code == 0
    assert [worker.alone for worker in workers] == [[], [signal.SIGUSR2]]


class Inbox:
    """The leader's end of a channel to a follower that starts every worker, and counts from 0."""

    def __init__(self):
        self.messages, self.started, self.is_lost = [], 0, False

    def receive(self, seconds=0.0):
        return self.messages.pop(0) if self.messages else None

    def send(self, message):
        if message["do"] == "start":
            answer = {"to": message["ask"], "number": self.started, "pid": 100 + self.started}
            self.messages.append({"do": "answer", **answer})
            self.started += 1

    def ends(self, number, code):
        self.messages.append({"do": "ended", "number": number, "code": code})


def test_a_worker_has_no_exit_code_of_an_earlier_launcher_on_its_host(tmp_path):
    first, second = Inbox(), Inbox()
    current = [first]
    server = SimpleNamespace(
        channel=lambda index: None if current[0].is_lost else current[0], address=lambda index: "b"
    )
    node = RemoteNode(1, server=server, wait_for=lambda wanted: None)
    ended, cut_off, lost = (node.start(specs(tmp_path)[0], None) for _ in range(3))
    first.ends(0, 75)
    assert (ended.poll(), cut_off.poll(), lost.poll()) == (75, None, None)
    # The launcher there says how one more worker ended, and is killed and started again.
    first.ends(1, 3)
    first.is_lost = True
    current[0] = second
    successor = node.start(specs(tmp_path)[0], None)
    assert successor.poll() is None
    assert (ended.poll(), cut_off.poll(), lost.poll()) == (75, 3, EXIT_NODE_LOST)
    second.ends(0, 1)
    assert (successor.poll(), ended.poll()) == (1, 75)


def specs(root):
    return [
        WorkerSpec(rank=rank, world_size=2, addresses=("a:1", "b:2"), run_dir=str(root / "r"))
        for rank in (0, 1)
    ]


def test_workers_are_spread_evenly():
    machines = [Machine(cores=4), Machine(cores=2)]
    requested = {"strategy": "auto", "devices": None, "threads": None}
    resources, node_ranks = allocate_over_nodes(machines, workers=4, **requested)
    assert node_ranks == [0, 0, 1, 1]
    assert [share.threads for share in resources] == [2, 2, 1, 1]
    assert allocate_over_nodes(machines, workers=None, **requested)[1] == [0, 1]
    with pytest.raises(ConfigurationError, match="a multiple of 2"):
        allocate_over_nodes(machines, workers=3, **requested)


def test_addresses_of_workers_on_ipv6_hosts_have_brackets():
    nodes = [SimpleNamespace(address=a, pick_ports=lambda n: [7] * n) for a in ("fd00::1", "b")]
    assert allocate_addresses(nodes, [0, 1]) == ("[fd00::1]:7", "b:7")


def test_horovod_refuses_ipv6_addresses(tmp_path):
    (tmp_path / "train.py").touch()
    context = LaunchContext(
        environment={},
        machine=Machine(cores=1),
        output=Showing(io.StringIO()),
        node_group=replace(HERE, hosts=("fd00::1", "fd00::2")),
    )
    options = RunOptions(
        target=str(tmp_path / "train.py"), strategy="horovod", run_dir=tmp_path / "runs"
    )
    with pytest.raises(ConfigurationError, match="has the IPv6 address fd00::1"):
        run(options, context)
    assert not (tmp_path / "runs").exists()


def test_a_lost_host_is_reported_as_text():
    from phalanx.launcher.root_cause import WorkerExit

    ending = WorkerExit(rank=1, exit_code=EXIT_NODE_LOST, at=0.0)
    assert ending.what == "its host or the launcher there is lost"
    assert ending.shell_code == 1
