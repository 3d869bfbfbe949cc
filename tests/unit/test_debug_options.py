"""`phalanx run --debug`, `--fast-dev-run`, `--overfit-batches`, `--profile`: as values."""

import pytest
from typer.testing import CliRunner

import phalanx.cli.run
from phalanx.cli.app import app
from phalanx.cluster.debug_options import DebugOptions, ProfiledSteps, parse_profile
from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ConfigurationError
from phalanx.launcher.options import RunOptions
from phalanx.launcher.run_layout import profile_of
from phalanx.launcher.run_result import RunResult, print_summary


@pytest.mark.parametrize(
    ("steps", "workers", "found"),
    [
        (None, None, None),
        ("12", None, ProfiledSteps(first=12, last=12)),
        ("10:15", None, ProfiledSteps(first=10, last=15)),
        ("10:15", "1, 0,1", ProfiledSteps(first=10, last=15, workers=(0, 1))),
    ],
)
def test_steps_to_profile(steps, workers, found):
    assert parse_profile(steps, workers) == found


@pytest.mark.parametrize(
    ("steps", "workers", "says"),
    [
        ("0", None, "found '0'"),
        ("15:10", None, "found '15:10'"),
        ("10-15", None, "such as 10:15; found '10-15'"),
        ("10:15", "chief", "found 'chief'"),
        (None, "0", "--profile-ranks 0 needs steps"),
    ],
)
def test_steps_that_cannot_be_profiled(steps, workers, says):
    with pytest.raises(ConfigurationError) as refused:
        parse_profile(steps, workers)
    assert says in str(refused.value)


def test_a_worker_is_reported_by_its_spec():
    switches = DebugOptions(
        debug=True,
        trial_batches=3,
        overfit_batches=2,
        profile=ProfiledSteps(first=10, last=15, workers=(0, 2)),
    )
    spec = WorkerSpec(rank=0, world_size=1, switches=switches, desync_address="127.0.0.1:1")
    assert WorkerSpec.from_environment(spec.to_environment()) == spec
    assert WorkerSpec.from_fields({"rank": 0, "world_size": 1, "addresses": []}).switches == (
        DebugOptions()
    )


def test_the_terminal_is_one_workers():
    def has(rank, **switches):
        addresses = ("a:1", "b:1")
        switches = DebugOptions(**switches)
        spec = WorkerSpec(rank=rank, world_size=2, addresses=addresses, switches=switches)
        return spec.has_terminal

    assert (has(0, debug=True), has(1, debug=True)) == (True, False)
    assert (has(0, debug=True, debug_rank=1), has(1, debug=True, debug_rank=1)) == (False, True)
    assert not has(0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"switches": DebugOptions(debug_rank=1)}, "--debug-rank 1 gives a worker the terminal"),
        ({"switches": DebugOptions(debug=True, debug_rank=-1)}, "at least 0; found -1"),
        ({"switches": DebugOptions(trial_batches=1), "name": "n"}, "leave out --name and --resume"),
        ({"switches": DebugOptions(trial_batches=1, overfit_batches=1)}, "found --overfit-batches"),
        (
            {"switches": DebugOptions(trial_batches=1, profile=ProfiledSteps(first=1, last=1))},
            "found --profile as well",
        ),
        ({"switches": DebugOptions(debug=True), "strategy": "parameter-server"}, "--debug is for"),
        (
            {"switches": DebugOptions(overfit_batches=1), "strategy": "parameter-server"},
            "--overfit-batches is for workers that train in step",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options, says):
    with pytest.raises(ConfigurationError) as refused:
        RunOptions(target="train.py", **options)
    assert says in str(refused.value)


@pytest.fixture
def requested(monkeypatch, tmp_path):
    """What the command line asks the launcher for."""
    seen = []

    def launch(options, context):
        seen.append(options)
        return RunResult(exit_code=0, run_dir=tmp_path)

    monkeypatch.setattr(phalanx.cli.run, "launch", launch)

    def ask(*words):
        result = CliRunner().invoke(app, ["run", *words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return seen.pop()

    return ask


@pytest.mark.parametrize(
    ("words", "batches", "arguments"),
    [
        (["--fast-dev-run", "train.py"], 1, ()),
        (["--fast-dev-run", "3", "train.py"], 3, ()),
        (["--fast-dev-run=3", "train.py"], 3, ()),
        (["--fast-dev-run", "--workers", "2", "train.py", "4"], 1, ("4",)),
        (["--workers", "2", "--fast-dev-run", "--", "train.py"], 1, ()),
        (["train.py", "--fast-dev-run"], 0, ("--fast-dev-run",)),
        (["--debug", "--fast-dev-run", "train.py", "--fast-dev-run"], 1, ("--fast-dev-run",)),
        (["--name", "--fast-dev-run", "train.py"], 0, ()),
    ],
)
def test_the_number_of_fast_dev_run_may_be_left_out(requested, words, batches, arguments):
    if "--name" in words:
        with pytest.raises(ConfigurationError, match="found '--fast-dev-run'"):
            requested(*words)
        return
    options = requested(*words)
    assert (options.switches.trial_batches, options.arguments) == (batches, arguments)
    assert options.target == "train.py"


def test_the_other_switches_arrive(requested):
    words = ["--debug", "--debug-rank", "1", "--overfit-batches", "4", "--profile", "2:3"]
    options = requested(*words, "--profile-ranks", "1", "train.py")
    assert options.switches == DebugOptions(
        debug=True,
        debug_rank=1,
        overfit_batches=4,
        profile=ProfiledSteps(first=2, last=3, workers=(1,)),
    )


@pytest.mark.parametrize("option", ["--fast-dev-run", "--overfit-batches"])
@pytest.mark.parametrize("number", ["0", "-2"])
def test_no_batches_are_refused(requested, option, number):
    with pytest.raises(ConfigurationError, match=f"{option} must be at least 1; found {number}"):
        requested(option, number, "train.py")


def messages_of(result, **switches):
    printed = []
    print_summary(result, DebugOptions(**switches), printed.append)
    return printed


def test_a_trial_leaves_nothing_unless_it_failed(tmp_path):
    run = tmp_path / "runs" / "first"
    (run / "records").mkdir(parents=True)
    (printed,) = messages_of(
        RunResult(exit_code=1, run_dir=run, report="worker 0"), trial_batches=2
    )
    assert f"its logs stay in {run}" in printed
    assert run.exists()
    (printed,) = messages_of(RunResult(exit_code=0, run_dir=run), trial_batches=1)
    assert "1 batch at most; nothing was kept" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_earnest_stays(tmp_path):
    assert messages_of(RunResult(exit_code=0, run_dir=tmp_path)) == []
    assert tmp_path.exists()


def test_where_a_profile_lies_is_said(tmp_path):
    requested = ProfiledSteps(first=10, last=15, workers=(0, 1))
    result = RunResult(exit_code=0, run_dir=tmp_path)
    assert messages_of(result, profile=requested) == [
        "no profile was taken: no fit trained steps 10 to 15 on worker 0, 1"
    ]
    file = profile_of(tmp_path, requested.name, 1)
    file.parent.mkdir(parents=True)
    file.touch()
    (printed,) = messages_of(result, profile=requested)
    assert printed.startswith("profile of steps 10 to 15 on worker 1: tensorboard --logdir ")
    assert file == tmp_path / "tensorboard/plugins/profile/steps-10-15/worker-1.xplane.pb"
