"""The processes of a `tf.data` service beside a worker group."""

import pytest

from phalanx.errors import LaunchError
from phalanx.launcher import process as launcher_process
from phalanx.launcher.data_servers import MOST_REPLACEMENTS, DataServers


class Process:
    """Runs until it is stopped."""

    pid = 2**22 + 1

    def __init__(self, command, env, log):
        self.command, self.env, self.log = command, env, log
        self.code = None
        self.is_kept = False  # by the kernel, in state D

    def poll(self):
        return self.code

    def signal(self, number):
        self.code = None if self.is_kept else -int(number)


class Scene:
    def __init__(self, tmp_path, addresses):
        self.started, self.output = [], []
        self.fails_at = None
        self.servers = DataServers(
            addresses,
            environment={"A": "1", "TF_CONFIG": "{}"},
            run_dir=tmp_path,
            announce=self.output.append,
            start=self.start,
        )

    def start(self, command, *, env, log):
        if len(self.started) == self.fails_at:
            raise LaunchError("no")
        self.started.append(Process(command, env, log))
        return self.started[-1]

    def running(self):
        return [process for process in self.started if process.code is None]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path, [f"10.0.0.1:{port}" for port in (7000, 7001, 7002)])


def test_a_dispatcher_and_workers_start_and_end_together(scene, tmp_path):
    with scene.servers:
        commands = [process.command[4:] for process in scene.running()]
        assert commands == [
            ("dispatcher", "10.0.0.1:7000", str(tmp_path / "data-service" / "state")),
            ("worker", "10.0.0.1:7001", "10.0.0.1:7000"),
            ("worker", "10.0.0.1:7002", "10.0.0.1:7000"),
        ]
        names = [process.log.name for process in scene.started]
        assert names == ["dispatcher.log", "data-0.log", "data-1.log"]
        env = scene.started[1].env
        assert (env["A"], env["CUDA_VISIBLE_DEVICES"]) == ("1", "-1")
        assert "TF_CONFIG" not in env
    assert scene.running() == []


def test_one_that_dies_is_started_again_at_its_address(scene):
    with scene.servers:
        scene.started[2].code = -9
        scene.servers.poll()
        assert scene.output == ["data server data-1 ended with -9; starting a replacement"]
        assert scene.started[-1].command == scene.started[2].command
        scene.servers.poll()
        assert len(scene.started) == 4


def test_one_that_always_dies_is_left_at_last(scene):
    with scene.servers:
        for _ in range(MOST_REPLACEMENTS + 3):
            scene.started[-1].code = 1
            scene.servers.poll()
        assert len(scene.started) == 3 + MOST_REPLACEMENTS
        assert "workers read on their own" in scene.output[-1]
        assert len(scene.running()) == 2


def test_one_that_cannot_be_replaced_does_not_end_the_run(scene):
    with scene.servers:
        scene.fails_at = 3
        scene.started[1].code = -9
        scene.servers.poll()
        scene.servers.poll()
        assert len(scene.running()) == 2
    assert scene.output == [
        "data server data-0 ended with -9; starting a replacement",
        "the replacement of data server data-0 did not start: no Workers read on their own",
    ]


def test_one_that_the_kernel_keeps_is_left(scene, monkeypatch):
    monkeypatch.setattr(launcher_process, "AFTER_KILL", 0.1)
    with scene.servers:
        scene.started[1].is_kept = True
    assert scene.started[0].code == scene.started[2].code == -9
    (line,) = scene.output
    assert f"after SIGKILL: data server data-0 (process {Process.pid}). " in line


def test_all_or_none_start(scene):
    scene.fails_at = 2
    with pytest.raises(LaunchError), scene.servers:
        pytest.fail("it started")
    assert len(scene.started) == 2
    assert scene.running() == []


def test_no_addresses_no_service(tmp_path):
    scene = Scene(tmp_path, [])
    with scene.servers:
        scene.servers.poll()
    assert scene.started == []
    assert not (tmp_path / "data-service").exists()
