"""Which directory `phalanx debug replay` takes for the run that it is given."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.errors import ConfigurationError


@pytest.fixture
def replayed(tmp_path, monkeypatch):
    """The directory that is replayed when the command is given these words."""
    commands = []

    def started(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", started)
    monkeypatch.chdir(tmp_path)

    def of(*words):
        done = CliRunner().invoke(app, ["debug", "replay", *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        command = commands.pop()
        return Path(command[command.index("phalanx.diagnostics.debug.replay_main") + 1])

    return of


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / "first"
    (path / "records").mkdir(parents=True)
    return path


def test_by_name_by_path_and_in_another_directory_of_runs(replayed, run, tmp_path):
    assert replayed("first").resolve() == run
    assert replayed("runs/first").resolve() == run
    (tmp_path / "runs").rename(tmp_path / "other")
    assert replayed("first", "--run-dir", "other").resolve() == tmp_path / "other" / "first"


def test_a_captured_step_and_captures_without_a_run(replayed, run, tmp_path):
    step = run / "captures" / "worker-0-step-2"
    step.mkdir(parents=True)
    assert replayed(str(step)) == step
    alone = tmp_path / "copied"
    (run / "captures").rename(tmp_path / "captures")
    alone.mkdir()
    assert replayed("copied").resolve() == alone


def test_a_name_is_a_run_before_it_is_a_directory(replayed, run, tmp_path):
    (tmp_path / "first").mkdir()
    assert replayed("first").resolve() == run


def test_an_unknown_name_lists_the_known_ones(replayed, run):
    with pytest.raises(ConfigurationError, match=r"There is no run 'nix'.*: first\.$"):
        replayed("nix")
