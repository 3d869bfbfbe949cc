"""Every command and every piece of Python in the documentation is run, or checked.

Python runs as it stands, in a fresh process. Commands of `phalanx run` are taken as far as
the plan of the run; those with an example of ours are run on a few images. A block is left
out only where the page says so and why: `<!-- not run: why -->` in the line before it.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
from pages import ROOT, blocks
from typer.testing import CliRunner

from phalanx.testing import run_single

SHELLS = ("bash", "console")
COMMANDS = [
    pytest.param(words, id=f"{block} {' '.join(words)[:60]}")
    for block in blocks(*SHELLS)
    if block.why_not is None
    for words in block.commands
]
PYTHON = blocks("python")

NOT_RUN = {
    "installs packages",
    "needs the end of a machine",
    "needs the process id of a worker that runs",
    "needs a run that hangs",
    "needs a run whose loss was not finite",
    "needs the checkpoints of a run",
    "needs the records of a run",
    "needs Horovod",
    "runs tests",
    "builds Horovod for some minutes",
    "needs a TPU",
    "needs MLflow",
    "needs wandb",
    "needs the packages of the trackers",
    "needs a notebook",
    "takes a script up to its fit",
    "waits for a worker to fail",
    "waits for what another command writes",
    "names files that are not there",
    "what it replaces",
    "needs a cluster",
    "needs nftables and root",
}


def test_what_is_not_run():
    """Whoever adds to this list has a reason that will do for a reader too."""
    why = {block.why_not for block in blocks(*SHELLS, "python") if block.why_not}
    assert why == NOT_RUN


def test_other_blocks_are_text():
    known = {*SHELLS, "python", "text", "json", "diff"}
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
    assert set(re.findall(r"^ *```(\w+)$", text, re.MULTILINE)) <= known
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) % 2 == 0


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with the scripts that the pages speak of."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS)
def test_command(words, place, monkeypatch):
    match words:
        case ["phalanx", "run", *options]:
            plan_of(options, monkeypatch)
        case ["phalanx", "predict" | "evaluate" as command, *options]:
            computed(command, options, place, monkeypatch)
        case ["phalanx", "init"]:
            (place / "train.py").unlink()
            assert CliRunner().invoke(cli_app(), ["init"]).exit_code == 0
        case ["phalanx", "check", *options]:
            checked(options)
        case ["phalanx", "submit", _, *options]:
            assert "--dry-run" in options
            result = CliRunner().invoke(cli_app(), words[1:])
            assert result.exit_code == 0, result.exception
        case ["phalanx", "watch" | "report", *options]:
            shown_or_written(words[1], options, place)
        case ["phalanx", "doctor", *options]:
            diagnosed(options, monkeypatch)
        case ["phalanx", "--help" | "--version"]:
            finished = subprocess.run([sys.executable, "-m", *words], check=False, timeout=600)
            assert finished.returncode == 0
        case ["make", target]:
            makefile = (ROOT / "Makefile").read_text()
            assert re.search(rf"^{target}: ", makefile, re.MULTILINE)
        case ["python", script, *_]:
            assert (ROOT / script).exists()
        case _:
            pytest.fail(f"no one knows how to check {words}")


def cli_app():
    from phalanx.cli.app import app

    return app


def shown_or_written(command, options, place):
    """What `phalanx watch` or `phalanx report` makes of runs that have ended."""
    from made_run import make_run
    from phalanx.cli.app import app

    for name in ("runs/first", "runs/second", "results/first"):
        make_run(place, name, epochs=3)
    result = CliRunner().invoke(app, [command, *options])
    assert result.exit_code == 0, result.output
    assert result.stdout or list(place.glob("**/*.html"))


def checked(options):
    """What `phalanx check` says of a script without mistakes."""
    from phalanx.cli.app import app

    result = CliRunner().invoke(app, ["check", *options])
    assert result.exit_code == 0, result.output


def diagnosed(options, monkeypatch):
    """What `phalanx doctor` says; TensorFlow is not asked, nor added with, which takes long."""
    from phalanx.cli.app import app
    from phalanx.diagnostics.doctor import all_reduce
    from phalanx.diagnostics.doctor.probe_tensorflow import TensorFlowInfo

    monkeypatch.setattr(TensorFlowInfo, "probe", TensorFlowInfo)
    monkeypatch.setattr(all_reduce, "on_this_machine", lambda: None)
    result = CliRunner().invoke(app, ["doctor", *options])
    assert result.exit_code == 0, result.output
    assert "directory: " in result.output


def computed(command, options, place, monkeypatch):
    """What `phalanx predict` or `phalanx evaluate` would start, without starting it."""
    from phalanx.cli import run
    from phalanx.launcher.run_result import RunResult

    (block,) = (b for b in PYTHON if b.page == "docs/predict.md" and "# inputs.py" in b.body)
    (place / "inputs.py").write_text(block.body)
    with zipfile.ZipFile(place / "model.keras", "w") as model:
        model.writestr("config.json", json.dumps({"compile_config": {"loss": "mse"}}))
    for name in ("rows/0.npy", "test.npz", "rows-1.csv", "photos/cat/1.png"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"1")
    started = []

    def launch(options, context):
        started.append(options.arguments)
        (place / "evaluation.json").write_text('{"rows": 1, "metrics": {"loss": 0.5}}')
        return RunResult(exit_code=0, run_dir=place)

    monkeypatch.setattr(run, "launch", launch)
    result = CliRunner().invoke(cli_app(), [command, *options])
    assert [arguments[0] for arguments in started] == [command], result.exception
    # Nothing was predicted, and the command says so.
    assert result.exit_code == (1 if command == "predict" else 0)


def plan_of(options, monkeypatch):
    """What `phalanx run` would do, without doing it."""
    from phalanx.cli import run as command
    from phalanx.cli.app import app
    from phalanx.launcher import run as launcher

    made = []

    def plan_only(requested, context):
        (launcher.check_module if requested.as_module else lambda name: None)(requested.target)
        made.append(launcher.make_plan(requested, context, [context.machine]))
        return launcher.RunResult(exit_code=0, run_dir=made[0][0].run_dir)

    monkeypatch.setattr(command, "launch", plan_only)
    result = CliRunner().invoke(app, ["run", *options])
    assert result.exit_code == 0, result.output
    (plan, requested) = made[0]
    assert requested.as_module or os.path.exists(requested.target)
    return plan


@pytest.mark.parametrize("block", [pytest.param(b, id=str(b)) for b in PYTHON if b.why_not is None])
def test_python(block, tmp_path):
    def as_a_script():
        os.chdir(tmp_path)
        exec(compile(block.body, str(block), "exec"), {"__name__": "__main__"})

    run_single(as_a_script, deadline=600)


@pytest.mark.parametrize("block", [pytest.param(b, id=str(b)) for b in PYTHON if b.why_not])
def test_python_that_is_not_run_is_python(block):
    ast.parse(block.body)


def test_the_extras_that_are_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set()
    for block in blocks("bash"):
        named |= set(re.findall(r"phalanx\[(\w+)\]", block.body))
    assert named == {"cpu", "gpu", "mlflow"}
    assert named < set(extras["optional-dependencies"])


def shape(line):
    """A line without what differs from run to run."""
    return re.sub(r"[\d.]+(?:ms|us|s)?", "#", line)


@pytest.mark.full
def test_the_readme_shows_what_happens(place):
    """The transcript, again on a few images: the same lines but for the numbers."""
    (block,) = (b for b in blocks("console") if b.page == "README.md")
    (words,) = block.commands
    small = ["--limit", "240", "--epochs", "3"]
    finished = subprocess.run(
        [sys.executable, "-m", *words, *small],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    assert [shape(s) for s in finished.stdout.splitlines()] == [shape(s) for s in block.output]


@pytest.mark.full
def test_a_hand_written_loop_has_one_devices_answer(place):
    options = ["--limit", "640", "--epochs", "1"]
    one, two = (losses_of(n, "hand_loop.py", options, r"loss (\S+)") for n in (1, 2))
    assert len(one) == 1
    assert one == pytest.approx(two, rel=1e-3)  # As far as they are printed.


@pytest.mark.full
def test_a_script_with_its_own_strategy(place):
    options = ["--limit", "640", "--epochs", "1", "--steps", "4"]
    printed = losses_of(2, "own_strategy.py", options, r"worker \d: accuracy (\S+)", tee="all")
    assert len(printed) == 2
    assert printed[0] == printed[1]


def losses_of(workers, script, options, says, tee="chief"):
    words = ["run", "--workers", str(workers), "--seed", "3", "--tee", tee, f"examples/{script}"]
    finished = subprocess.run(
        [sys.executable, "-m", "phalanx", *words, *options],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return [float(value) for value in re.findall(says, finished.stdout)]
