"""Jobs for Ray: what is handed over, and what a driver does when nodes come and go."""

import json
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cluster.detect import detect
from phalanx.errors import ConfigurationError, LaunchError
from phalanx.launcher.resources import Machine
from phalanx.launcher.signals import SignalCatcher
from phalanx.submit import ray_client
from phalanx.submit.job_registry import find_job
from phalanx.submit.ray_command import RayJob
from phalanx.submit.ray_driver.driver import Driver
from phalanx.submit.ray_driver.plan import RayPlan


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def submit(*words):
    return CliRunner().invoke(app, ["submit", "ray", *words])


def options_of(words):
    """What `phalanx run` makes of a launcher's words."""
    name, *rest = words
    return typer.main.get_command(app).commands[name].make_context(name, list(rest)).params


def test_a_dry_run_prints_a_command_of_rays_own(place):
    result = submit(
        *("--address", "http://head:8265", "--workers", "2:4", "--cpus-per-worker", "8"),
        *(
            "--gpus-per-worker",
            "1",
            "--name",
            "mnist",
            "--grace-period",
            "30",
            "--max-node-failures",
            "3",
        ),
        *("--placement-timeout", "5", "--python", "/venv/bin/python", "--run-options", "--seed 7"),
        *("--max-restarts", "2", "--dry-run", "train.py", "--note", "two words"),
    )
    assert result.exit_code == 0, result.output
    *comments, line = result.output.splitlines()
    assert "2 to 4 bundles of CPU 8, GPU 1" in comments[0]
    options, entrypoint = line.split(" -- ")
    flags = shlex.split(options)
    assert flags[: flags.index("--no-wait")] == [
        *("ray", "job", "submit", "--address", "http://head:8265", "--submission-id", "mnist")
    ]
    *program, text = shlex.split(entrypoint)
    assert program == ["/venv/bin/python", "-m", "phalanx.submit.ray_driver"]
    plan = RayPlan.from_json(text)
    assert (
        plan.min_launchers,
        plan.max_launchers,
        plan.max_node_failures,
        plan.placement_timeout,
    ) == (2, 4, 3, 5)
    assert plan.bundle == {"CPU": 8, "GPU": 1}
    assert plan.directory == str(place)

    printed = shlex.split(comments[-1].removeprefix("#"))
    assert printed == ["/venv/bin/python", "-m", "phalanx", *plan.launcher(4)]
    given = options_of(plan.launcher(3))
    assert (given["workers"], given["cluster"], given["seed"]) == ("3", "ray", 7)
    assert (given["threads_per_worker"], given["grace_period"], given["max_restarts"]) == (8, 30, 2)
    assert (given["name"], given["resume"], str(given["run_dir"])) == (
        "mnist", True, str(place / "runs"),
    )  # fmt: skip
    assert (given["target"], list(given["arguments"])) == (
        str(place / "train.py"), ["--note", "two words"],
    )  # fmt: skip


def test_values_of_variables_are_not_in_the_entrypoint_and_reach_the_launchers(place, monkeypatch):
    (place / "train.env").write_text("KEY=s3cr3t\nA=file\n")
    options = ("--env-from", "train.env", "--run-options", "--env A=s3cr3t-too --seed 7")
    result = submit(*options, "--dry-run", "train.py")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.output.splitlines()[-1])
    given = json.loads(words.pop(words.index("--runtime-env-json") + 1))["env_vars"]
    assert "s3cr3t" not in shlex.join(words)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = RayPlan.from_json(words[-1]).variables(("a", "b"), 1, 0)
    assert (environment["KEY"], environment["A"]) == ("s3cr3t", "s3cr3t-too")


def test_launchers_find_each_other_and_their_gpus():
    plan = RayPlan(
        name="it", run_dir="/shared/runs", words=("run",), min_launchers=2, max_launchers=2
    )
    environment = plan.variables(("10.0.0.1", "10.0.0.2"), 1, 3)
    node_group = detect(environment, kind="ray")
    assert (node_group.hosts, node_group.index, node_group.job) == (
        ("10.0.0.1", "10.0.0.2"),
        1,
        "it-3",
    )
    assert Machine.here(environment).gpus == ()
    assert "CUDA_VISIBLE_DEVICES" not in replace(plan, gpus=1).variables(("a",), 0, 0)


def test_a_directory_is_passed_along(place):
    (place / "code").mkdir()
    (place / "train.py").rename(place / "code" / "train.py")
    result = submit("--working-dir", "code", "--dry-run", "train.py")
    assert result.exit_code == 0, result.output
    words = shlex.split(result.output.splitlines()[-1])
    environment = json.loads(words[words.index("--runtime-env-json") + 1])
    assert environment["working_dir"] == str(place / "code")
    plan = RayPlan.from_json(words[-1])
    assert (plan.words[-1], plan.directory) == ("train.py", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "3:2"), "--workers 3:2 must be at least 1"),
        (("--workers", "0"), "A job needs at least 1 of its hosts"),
        (("--cpus-per-worker", "0"), "--cpus-per-worker must be more than 0.*found 0, 0, 10"),
        (("--grace-period", "0"), "--grace-period must be at least 1 second; found 0"),
        (
            ("--workers", "2", "--gpus-per-worker", "2"),
            "phalanx submit ray --workers 4 --gpus-per-worker 1",
        ),
    ],
)
def test_what_cannot_work_is_refused(place, words, message):
    error = submit(*words, "train.py").exception
    assert isinstance(error, ConfigurationError)
    with pytest.raises(ConfigurationError, match=message):
        raise error


class JobServer:
    """Ray's client, as far as it is used here."""

    def __init__(self, *taken):
        self.jobs = dict.fromkeys(taken, "RUNNING")
        self.asked = []

    def list_jobs(self):
        return [SimpleNamespace(submission_id=name) for name in self.jobs]

    def submit_job(self, *, entrypoint, submission_id, runtime_env):
        self.asked.append((entrypoint, runtime_env))
        self.jobs[submission_id] = "PENDING"
        return submission_id

    def get_job_info(self, name):
        if name not in self.jobs:
            raise RuntimeError(f"Job {name} does not exist.")
        return SimpleNamespace(status=SimpleNamespace(value=self.jobs[name]), message=None)

    def get_job_logs(self, name):
        return f"log of {name}\n"

    def stop_job(self, name):
        self.jobs[name] = "STOPPED"


def test_a_job_is_noted_and_found(tmp_path):
    job = RayJob(
        target="/shared/train.py",
        name="mnist",
        workers="2",
        run_dir=Path("/shared/runs"),
        jobs_dir=tmp_path,
        address="http://head:8265",
    )
    server = JobServer()
    ray_client.submit(job, server)
    assert server.asked == [(job.entrypoint(), job.runtime_env())]
    found = find_job("mnist", tmp_path)
    assert (found.kind, found.job, found.address) == ("ray", "mnist", "http://head:8265")
    assert ray_client.status(found, server) == "PENDING"
    assert ray_client.logs(found, server) == "log of mnist\n"
    ray_client.cancel(found, server)
    assert ray_client.status(found, server) == "STOPPED"

    # Resumed: Ray takes each job's name only once.
    again = ray_client.submit(job, server)
    assert again.job == "mnist-2"
    server.jobs.clear()
    with pytest.raises(LaunchError, match="refused what was asked: Job mnist-2 does not exist"):
        ray_client.status(again, server)


def test_a_cluster_without_an_agent_yet_is_asked_again(tmp_path):
    class Starting(JobServer):
        refusals = 2

        def submit_job(self, **job):
            if self.refusals:
                self.refusals -= 1
                raise RuntimeError("status code 500: No available agent to submit job, ...\nlater")
            return super().submit_job(**job)

    waits, server = [], Starting()
    job = RayJob(
        target="/shared/train.py",
        name="mnist",
        workers="2",
        run_dir=Path("/shared/runs"),
        jobs_dir=tmp_path,
        address="http://head:8265",
    )
    assert ray_client.submit(job, server, sleep=waits.append).job == "mnist"
    assert waits == [1.0, 1.0]
    server.refusals = 100
    with pytest.raises(LaunchError, match="No available agent"):
        ray_client.submit(job, server, sleep=waits.append)
    assert server.refusals == 70


def test_ray_is_not_here(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(LaunchError, match=r'pip install "phalanx\[ray\]"'):
        ray_client.connect("http://127.0.0.1:1")


class Clock:
    """Passes when somebody sleeps; then things happen."""

    def __init__(self):
        self.time = 1000.0
        self.plans = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds
        for at, what in [one for one in self.plans if one[0] <= self.time]:
            self.plans.remove((at, what))
            what()


class Request:
    def __init__(self, cluster, count):
        self.cluster, self.count, self.has = cluster, count, False

    def is_ready(self):
        if not self.has and self.cluster.room >= self.count:
            self.cluster.room -= self.count
            self.has = True
        return self.has

    def release(self):
        if self.has:
            self.cluster.room += self.count
        self.has = False


class Launchers:
    """One start, to which tests do what they like."""

    def __init__(self, count):
        self.hosts = tuple(f"n{index}" for index in range(count))
        self.codes = [None] * count
        self.lost, self.signals, self.silent = set(), [], set()

    def poll(self, seconds):
        pass

    def check(self, seconds):
        self.lost |= self.silent

    def signal(self, number):
        self.signals.append(number)
        self.codes = [75] * len(self.codes)

    def end(self):
        pass

    def ends(self, code):
        self.codes = [code] * len(self.codes)


class Cluster:
    """Bundles and launchers without Ray: `script` has what happens in each start."""

    def __init__(self, room, clock, *script):
        self.room, self.clock, self.script = room, clock, list(script)
        self.starts, self.times, self.requested = [], [], []

    def request(self, count):
        self.requested.append(count)
        return Request(self, count)

    def describe_resources(self):
        return f"room for {self.room}"

    def start(self, requests, number):
        assert all(request.has for request in requests)
        launchers = Launchers(sum(request.count for request in requests))
        self.starts.append(launchers)
        self.times.append(self.clock.time)
        after, what = self.script[number]
        self.clock.plans.append((self.clock.time + after, lambda: what(launchers)))
        return launchers


def ends(code):
    return 10, lambda launchers: launchers.ends(code)


def loses(index, cluster_shrinks_to=None):
    def lose(launchers):
        launchers.lost.add(index)

    return 10, lose


def driven(
    tmp_path,
    room,
    *script,
    min_launchers=2,
    max_launchers=2,
    max_node_failures=10,
    happens=(),
    signals=None,
):
    clock = Clock()
    cluster = Cluster(room, clock, *script)
    for at, what in happens:
        clock.plans.append((1000.0 + at, lambda what=what: what(cluster)))
    printed = []
    plan = RayPlan(
        name="it",
        run_dir=str(tmp_path),
        words=("run",),
        min_launchers=min_launchers,
        max_launchers=max_launchers,
        max_node_failures=max_node_failures,
    )
    signals = signals or SignalCatcher(())
    driver = Driver(plan, cluster, signals=signals, clock=clock, announce=printed.append)
    return driver.run(), cluster, printed


def sizes(cluster):
    return [len(start.hosts) for start in cluster.starts]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_run_that_ends_on_its_own(tmp_path, code):
    got, cluster, printed = driven(tmp_path, 2, ends(code))
    assert (got, sizes(cluster)) == (code, [2])
    assert printed == ["2 launchers on n0, n1"]
    assert cluster.room == 2, "the bundles are given back"


def test_a_lost_node_is_replaced(tmp_path):
    got, cluster, printed = driven(tmp_path, 2, loses(1), loses(0), ends(0))
    assert (got, sizes(cluster)) == (0, [2, 2, 2])
    assert "lost the launcher on n1 (1): resuming from the last checkpoint" in printed
    assert "lost the launcher on n0 (0): resuming from the last checkpoint" in printed


def test_a_failure_may_be_a_lost_nodes(tmp_path):
    def fails(launchers):
        launchers.silent.add(1)  # Ray does not know yet.
        launchers.codes[:] = [1, None]
        launchers.codes[1] = 1

    assert driven(tmp_path, 2, (10, fails), ends(0))[0] == 0


def test_a_launcher_that_was_killed_counts_as_lost(tmp_path):
    def killed(launchers):
        launchers.codes[1] = -9

    assert driven(tmp_path, 2, (10, killed), ends(0))[0] == 0


def test_retries_are_used_up(tmp_path):
    got, cluster, printed = driven(tmp_path, 2, *[loses(0)] * 3, max_node_failures=2)
    assert (got, sizes(cluster)) == (1, [2, 2, 2])
    assert printed[-1] == "--max-node-failures 2 are used up"


def test_a_job_waits_for_room(tmp_path):
    happens = [(100, lambda cluster: setattr(cluster, "room", 2))]
    got, _, printed = driven(tmp_path, 1, ends(0), happens=happens)
    assert got == 0
    assert printed[0].startswith("waiting for 2 bundles of CPU 1: 3")
    assert printed[0].endswith("so far; room for 1")


@pytest.mark.parametrize("room", range(2, 8))
def test_fewer_are_taken_after_some_time(tmp_path, room):
    got, cluster, printed = driven(tmp_path, room, ends(0), min_launchers=2, max_launchers=8)
    assert (got, sizes(cluster)) == (0, [room])
    assert f", {8 - room} fewer than wanted" in printed[-1]
    assert cluster.room == room, "nothing is kept"


def test_it_grows_after_a_checkpoint(tmp_path):
    records = tmp_path / "it" / "records"
    records.mkdir(parents=True)

    def write(time):
        record = {"kind": "checkpoint", "t": time, "step": 1}
        (records / "worker-0.jsonl").write_text(json.dumps(record) + "\n")

    def saved(cluster):
        write(cluster.clock.time)

    def there_is_room(cluster):
        cluster.room += 1

    write(500.0)  # by an earlier start: what was trained since would be lost
    happens = [(100, there_is_room), (200, saved)]
    script = [(10_000, lambda launchers: None), ends(0)]
    got, cluster, printed = driven(
        tmp_path, 1, *script, min_launchers=1, happens=happens, max_node_failures=0
    )
    assert (got, sizes(cluster)) == (0, [1, 2])
    assert cluster.starts[0].signals == [signal.SIGUSR1]
    assert cluster.times[1] >= 1200, "not before something was saved"
    assert cluster.requested == [2, 1, 1], "what it has is not asked for again"
    assert cluster.room == 2
    assert "restarting with all launchers: resuming from the last checkpoint" in printed


def test_asked_to_stop(tmp_path):
    signals = SignalCatcher(())
    happens = [(20, lambda cluster: signals.add(signal.SIGTERM, 0))]
    script = [(10_000, lambda launchers: None)]
    got, cluster, _ = driven(tmp_path, 2, *script, happens=happens, signals=signals)
    assert (got, sizes(cluster)) == (75, [2])
    assert cluster.starts[0].signals == [signal.SIGTERM]


def test_asked_to_stop_while_it_waits(tmp_path):
    signals = SignalCatcher(())
    happens = [(20, lambda cluster: signals.add(signal.SIGTERM, 0))]
    got, cluster, _ = driven(tmp_path, 1, happens=happens, signals=signals)
    assert (got, sizes(cluster)) == (143, [])


def test_nodes_that_are_asked_to_go(tmp_path):
    got, cluster, printed = driven(tmp_path, 2, ends(75), ends(0))
    assert (got, sizes(cluster)) == (0, [2, 2])
    assert "asked to save and stop: resuming from the last checkpoint" in printed
