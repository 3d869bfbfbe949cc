import subprocess
import sys

import pytest
from typer.testing import CliRunner

import phalanx.cli.run
from phalanx.cli.app import app
from phalanx.cluster.spec import DeviceSpec
from phalanx.errors import ConfigurationError
from phalanx.launcher.run_result import RunResult


@pytest.fixture
def requested(monkeypatch, tmp_path):
    """What the command line asks the launcher for, with the launcher stood in for."""
    seen = []

    def launch(options, context):
        seen.append(options)
        return RunResult(exit_code=5, run_dir=tmp_path)

    monkeypatch.setattr(phalanx.cli.run, "launch", launch)

    def ask(*words):
        result = CliRunner().invoke(app, ["run", *words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 5, result.output
        return seen.pop()

    return ask


def test_what_follows_the_script_is_its_own(requested):
    options = requested("--workers", "2", "train.py", "--workers", "9", "-m", "--help", "--", "x")
    assert options.workers == 2
    assert options.target == "train.py"
    assert options.arguments == ("--workers", "9", "-m", "--help", "--", "x")


def test_a_module(requested):
    options = requested("-m", "--seed", "3", "shop.train", "--seed", "4")
    assert (options.as_module, options.target, options.seed) == (True, "shop.train", 3)
    assert options.arguments == ("--seed", "4")


def test_every_option_arrives(requested, tmp_path):
    options = requested(
        *("--strategy", "mirrored", "--devices-per-worker", "cpu:2", "--threads-per-worker", "3"),
        *("--max-restarts", "0", "--name", "n", "--run-dir", str(tmp_path), "--tee", "none"),
        *("--env", "A=1", "--env", "B=2", "train.py"),
    )
    assert options.strategy == "mirrored"
    assert options.devices == DeviceSpec(count=2, kind="cpu")
    assert (options.threads, options.name, options.run_dir) == (3, "n", tmp_path)
    assert (options.tee, options.env) == ("none", {"A": "1", "B": "2"})


def test_a_bad_option_is_refused_before_the_launch(requested):
    with pytest.raises(ConfigurationError, match="found 'ring'"):
        requested("--strategy", "ring", "train.py")


SLOW_TO_IMPORT = "tensorflow keras tf_keras numpy pandas scipy h5py fsspec plotly ray tensorboard"


@pytest.mark.process
@pytest.mark.parametrize("word", ["--help", "--version"])
def test_an_answer_at_once_imports_nothing_slow(word):
    source = (
        "import atexit, runpy, sys\n"
        f"atexit.register(lambda: print({{*sys.modules}} & {{*{SLOW_TO_IMPORT.split()}}}))\n"
        f"sys.argv = ['phalanx', '{word}']\n"
        "runpy.run_module('phalanx', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert "phalanx" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.strip() == f"phalanx {phalanx.__version__}"
