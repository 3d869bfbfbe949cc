"""Batch scripts for Slurm, run by a real shell with programs that stand in for Slurm's."""

import os
import shlex
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.run_words import read_words
from phalanx.errors import ConfigurationError, LaunchError
from phalanx.submit.job_registry import find_job
from phalanx.submit.slurm_script import SlurmJob, batch_script
from phalanx.submit.submit_spec import SubmitSpec, name_for, split_options
from phalanx.submit.subprocess_client import run_command

pytestmark = pytest.mark.process

RUN = SubmitSpec(name="mnist", target="/shared/train.py", hosts=4, run_dir="/shared/runs")


def job(**changes):
    options = {
        "target": "/shared/train.py",
        "name": "mnist",
        "nodes": 4,
        "run_dir": Path("/shared/runs"),
        "python": "/venv/bin/python",
    }
    return SlurmJob(**{**options, **changes})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a script, and first in PATH programs that note how they are called."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    stand_in(tmp_path, "scontrol")
    stand_in(tmp_path, "srun")
    return tmp_path


def stand_in(place, name, says="", code=0):
    path = place / "bin" / name
    path.write_text(f'#!/bin/sh\necho {name} "$@" >> {place}/called\n{says}\nexit {code}\n')
    path.chmod(0o755)


def called(place, *, raw=False):
    path = place / "called"
    lines = path.read_text().splitlines() if path.exists() else []
    return lines if raw else [shlex.split(line) for line in lines]


def run_script(place, text, **environment):
    path = place / "job.sbatch"
    path.write_text(text)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    return subprocess.run(["bash", path], env={**os.environ, **environment}, check=False).returncode


def submit(*words):
    return CliRunner().invoke(app, ["submit", "slurm", *words])


def test_every_option_is_in_the_script(place):
    result = submit(
        *("--nodes", "4", "--workers-per-node", "2", "--gpus-per-node", "2"),
        *("--cpus-per-node", "16", "--mem", "64G", "--time", "1-12:00:00", "--partition", "gpu"),
        *("--account", "lab", "--sbatch-arg", "--exclude=n7", "--setup", "module load cuda"),
        *(
            "--name",
            "mnist",
            "--max-restarts",
            "2",
            "--grace-period",
            "30",
            "--python",
            "/venv/bin/python",
        ),
        *("--run-options", "--strategy horovod", "--dry-run", "train.py", "--note", "two words"),
    )
    assert result.exit_code == 0, result.output
    directives = [
        line.removeprefix("#SBATCH --")
        for line in result.output.splitlines()
        if line.startswith("#SBATCH")
    ]
    assert directives == [
        "job-name=mnist",
        "nodes=4",
        "ntasks-per-node=1",
        "cpus-per-task=16",
        "gpus-per-node=2",
        "mem=64G",
        "time=1-12:00:00",
        "partition=gpu",
        "account=lab",
        f"output={place}/runs/mnist.log",
        "open-mode=append",
        "signal=USR1@90",
        "requeue",
        "exclude=n7",
    ]
    assert "\nmodule load cuda\n" in result.output
    assert not (place / "runs").exists()


def test_the_script_starts_a_launcher_on_each_node(place):
    requested = job(
        arguments=["--note", "two words", "$HOME"],
        nodes=3,
        workers_per_node=2,
        max_restarts=1,
        run_options="--strategy horovod",
    )
    assert run_script(place, batch_script(requested)) == 0
    (words,) = called(place)
    assert words[:4] == ["srun", "--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=2"]
    assert words[4:8] == ["/venv/bin/python", "-m", "phalanx", "run"]
    command = typer.main.get_command(app).commands["run"]
    requested = command.make_context("run", shlex.split(shlex.join(words[8:]))).params
    assert requested["cluster"] == "slurm"
    assert (requested["workers"], requested["max_restarts"], requested["strategy"]) == (
        "6",
        1,
        "horovod",
    )
    assert (requested["name"], requested["resume"], str(requested["run_dir"])) == (
        "mnist",
        True,
        "/shared/runs",
    )
    assert requested["target"] == "/shared/train.py"


def test_arguments_reach_the_script_as_they_are(place):
    odd = ("two words", "$HOME", "'quoted'", "*.txt")
    stand_in(place, "srun", says=f'for last in "$@"; do echo "$last" >> {place}/words; done')
    run_script(place, batch_script(job(arguments=list(odd))))
    assert (place / "words").read_text().splitlines()[-4:] == list(odd)


KEY = "s3cr3t = $HOME 'x'"
WITH_KEY = f"--env KEY={shlex.quote(KEY)} --tee all --env=EMPTY="


def test_variables_of_a_file_are_not_in_the_script(place):
    (place / "train.env").write_text("KEY=s3cr3t\nA=file\n")
    stand_in(
        place, "sbatch", says=f'echo 4711; echo "$PHALANX_ENV_KEY $PHALANX_ENV_A" > {place}/it'
    )
    options = ("--env-from", "train.env", "--run-options", "--env A=1")
    result = submit("--name", "mnist", *options, "train.py")
    assert result.exit_code == 0, result.output
    assert (place / "it").read_text() == "s3cr3t 1\n"
    assert "s3cr3t" not in (place / "runs/mnist.sbatch").read_text()


def test_values_of_variables_are_not_in_the_script_and_reach_the_launchers(place, monkeypatch):
    stand_in(place, "sbatch", says=f'echo 4711; echo "$PHALANX_ENV_KEY" > {place}/exported')
    result = submit("--name", "mnist", "--run-options", WITH_KEY, "train.py")
    assert result.exit_code == 0, result.output
    kept = [path for path in (place / "runs").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if "s3cr3t" in path.read_text()]
    assert (place / "exported").read_text() == f"{KEY}\n"
    text = (place / "runs/mnist.sbatch").read_text()
    files = [place / "runs/mnist.sbatch", place / "runs/mnist.job.json"]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * 2
    assert run_script(place, text, PHALANX_ENV_KEY=KEY, PHALANX_ENV_EMPTY="") == 0
    # The launcher's command shows no value, to Slurm's accounting and to `ps`.
    (step,) = [words for words in called(place) if words[0] == "srun"]
    assert step[step.index("--cpus-per-task=1") + 1 :][:4] == [
        sys.executable,
        *("-m", "phalanx", "run"),
    ]
    assert "s3cr3t" not in shlex.join(step)
    words = step[step.index("run") + 1 :]
    monkeypatch.setenv("PHALANX_ENV_KEY", KEY)
    monkeypatch.setenv("PHALANX_ENV_EMPTY", "")
    options = read_words(words).options
    assert options.env == {"KEY": KEY, "EMPTY": ""}
    assert (options.tee, options.target) == ("all", str(place / "train.py"))


def test_a_script_that_is_submitted_without_its_variables_ends_at_once(place):
    assert run_script(place, batch_script(job(run_options="--env KEY=s3cr3t"))) != 0
    assert called(place) == []


@pytest.mark.parametrize(
    ("code", "restarts", "queued_again"),
    [(75, "0", True), (75, "99", True), (75, "100", False), (0, "0", False), (1, "0", False)],
)
def test_a_run_that_has_saved_is_queued_again(place, code, restarts, queued_again):
    stand_in(place, "srun", code=code)
    ended = run_script(place, batch_script(job()), SLURM_RESTART_COUNT=restarts)
    assert ended == code
    assert (["scontrol", "requeue", "17"] in called(place)) is queued_again


def test_submit_status_logs_cancel(place):
    stand_in(place, "sbatch", says="echo '4711;main'")
    result = submit("--nodes", "2", "--name", "mnist", "train.py")
    assert result.exit_code == 0, result.output
    assert called(place) == [["sbatch", "--parsable", f"{place}/runs/mnist.sbatch"]]
    assert "srun --nodes=2" in (place / "runs" / "mnist.sbatch").read_text()
    assert find_job("4711", place / "runs") == find_job("mnist", place / "runs")

    stand_in(place, "squeue", says="echo RUNNING 1:00 2 n[1-2]")
    assert CliRunner().invoke(app, ["status", "mnist"]).output == "RUNNING 1:00 2 n[1-2]\n"
    stand_in(
        place, "squeue", says="echo 'slurm_load_jobs error: Invalid job id specified' >&2", code=1
    )
    assert "ended" in CliRunner().invoke(app, ["status", "4711"]).output
    stand_in(place, "squeue", says="echo no controller >&2", code=1)
    assert "no controller" in str(CliRunner().invoke(app, ["status", "4711"]).exception)

    assert "has said nothing yet" in str(CliRunner().invoke(app, ["logs", "mnist"]).exception)
    (place / "runs" / "mnist.log").write_text("epoch 1\n")
    assert CliRunner().invoke(app, ["logs", "mnist"]).output == "epoch 1\n"

    stand_in(place, "scancel")
    assert CliRunner().invoke(app, ["cancel", "mnist"]).exit_code == 0
    assert called(place)[-1] == ["scancel", "4711"]


def test_what_slurm_says_is_reported(place):
    stand_in(place, "sbatch", says="echo invalid partition >&2", code=1)
    error = submit("--name", "mnist", "train.py").exception
    assert "sbatch ended with 1 and printed: invalid partition" in str(error)
    stand_in(place, "sbatch", says="echo Submitted")
    assert "found 'Submitted'" in str(submit("--name", "mnist", "train.py").exception)
    with pytest.raises(LaunchError, match="no such program here"):
        run_command(["no-such-program"])


def test_a_name_that_is_taken_is_refused(place):
    stand_in(place, "sbatch", says="echo 4711")
    (place / "runs" / "mnist" / "attempts").mkdir(parents=True)
    assert "There is a run in" in str(submit("--name", "mnist", "train.py").exception)
    assert submit("--name", "mnist", "--resume", "train.py").exit_code == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Mnist"}, "found 'Mnist'"),
        ({"name": "1st"}, "found '1st'"),
        ({"name": "a" * 53}, "at most 52"),
        ({"hosts": 0}, "at least 1 of its hosts; found 0"),
        ({"workers_per_host": 0}, "at least 1 of its workers; found 0"),
        ({"max_restarts": -1}, "--max-restarts must be at least 0; found -1"),
    ],
)
def test_a_run_that_cannot_work(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        SubmitSpec(**{**vars(RUN), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": "1:00\nrm -rf"}, "is one line; found '1:00"),
        ({"gpus_per_node": 0}, "--gpus-per-node must be at least 1; found 0"),
        ({"cpus_per_node": 0}, "--cpus-per-node must be at least 1; found 0"),
        ({"grace_period": 0}, "--grace-period must be at least 1 second; found 0"),
    ],
)
def test_a_job_that_cannot_work(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        job(**changes)


def test_a_quote_that_does_not_end():
    assert split_options("--seed 7 --env 'A=b c'") == ("--seed", "7", "--env", "A=b c")
    with pytest.raises(ConfigurationError, match="--run-options must be"):
        split_options("--name 'x")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("a/Train_MNIST.py", "train-mnist-20260102-030405"),
        ("2d.py", "run-2d-20260102-030405"),
        ("_.py", "run-20260102-030405"),
        ("x" * 80 + ".py", "x" * 36 + "-20260102-030405"),
    ],
)
def test_names_of_themselves(target, name):
    made = name_for(target, datetime(2026, 1, 2, 3, 4, 5))
    assert made == name
    SubmitSpec(**{**vars(RUN), "name": made})


def test_no_such_job(tmp_path):
    (tmp_path / "broken.job.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"no job 'mnist' .* there are: none"):
        find_job("mnist", tmp_path)
