"""`--run-options` of every `phalanx submit`: what launchers would refuse is refused at once."""

import re

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.submit_options import check_run
from phalanx.errors import ConfigurationError
from phalanx.submit.submit_spec import SubmitSpec, split_options

SUBMITS = {
    "slurm": ("--nodes", "2"),
    "kubernetes": ("--workers", "2", "--image", "x", "--pvc", "runs"),
    "ray": ("--workers", "2"),
}


def requested(options):
    run = SubmitSpec(
        name="it",
        target="train.py",
        hosts=2,
        run_dir="/runs",
        options=split_options(options),
        arguments=("--epochs", "3"),
    )
    return check_run(run)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("--strategy parameter-server --ps 2", "servers", 2),
        ("--strategy horovod --seed 3", "strategy", "horovod"),
        ("--data-workers 2 --tee all", "data_workers", 2),
        ("--workers 4", "workers", 4),
        ("--workers 1:2 --max-restarts 1", "min_workers", 1),
        ("--env A=1", "env", {"A": "1"}),
        ("", "workers", 2),
    ],
)
def test_what_launchers_take_is_taken(text, name, value):
    options = requested(text)
    assert getattr(options, name) == value
    assert (options.target, options.arguments) == ("train.py", ("--epochs", "3"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--strategy horovd", "--strategy must be one of .*found 'horovd'"),
        ("--ps 2", "--ps is for --strategy parameter-server"),
        ("--strategy mirrored", "--strategy mirrored trains on .* there are 2 workers"),
        ("--strategy parameter-server --profile 5", "--profile is for workers that train in step"),
        ("--workers 3", "found 3. Give a multiple of 2"),
        ("--cluster none", "are what the cluster says; found one in --run-options '--cluster"),
        ("--hosts a,b", "are what the cluster says; found one in --run-options '--hosts"),
        ("--name other", "are those of phalanx submit; found others .*'--name other'"),
        ("--run-dir other", "are those of phalanx submit; found others .*'--run-dir other'"),
        ("seed 1", "must be options of phalanx run and nothing else; found 'seed 1'"),
    ],
)
def test_what_launchers_would_refuse_is_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        requested(text)


@pytest.mark.parametrize("kind", SUBMITS)
def test_each_submit_asks(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")

    def submit(options):
        words = ["submit", kind, *SUBMITS[kind], "--dry-run", "--run-options", options, "train.py"]
        return CliRunner().invoke(app, words)

    assert "--ps is for" in str(submit("--ps 2").exception)
    unknown = submit("--stategy horovod")
    assert unknown.exit_code == 2
    assert re.search("No such option.*--stategy", unknown.output)
    bundles = submit("--workers 4").exception
    assert bool(re.search("bundles of Ray's", str(bundles))) == (kind == "ray")
