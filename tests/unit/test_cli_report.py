"""`phalanx report`: which runs, which file, which form."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from made_run import make_run
from phalanx.cli.app import app
from phalanx.errors import ConfigurationError


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, workers in (("first", 3), ("second", 2)):
        make_run(tmp_path / "runs", name, workers=workers)
    return tmp_path / "runs"


def report(*words):
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_the_page_lies_in_the_runs_directory(runs):
    result = report("first")
    text = (runs / "first" / "report.html").read_text()
    assert "<title>first · Phalanx</title>" in text
    assert "wrote runs/first/report.html" in result.stderr
    assert re.search(r"goodput \d+%; starting \d+%", result.stderr)
    assert result.stdout == ""


def test_several_runs_and_another_file(runs, tmp_path):
    report("first", "second")
    page = runs / "first" / "report-with-second.html"
    assert "2 runs compared" in page.read_text()
    report("first", runs / "second", "--output", tmp_path / "both.html")
    assert "<title>first · second · Phalanx</title>" in (tmp_path / "both.html").read_text()


def test_the_newest_run_of_another_directory(runs, tmp_path):
    make_run(tmp_path / "others", "third")
    report("--run-dir", "others")
    assert (tmp_path / "others" / "third" / "report.html").exists()


def test_json_goes_to_standard_output_or_to_a_file(runs, tmp_path):
    document = json.loads(report("first", "second", "--json").stdout)
    assert [run["name"] for run in document["runs"]] == ["first", "second"]
    report("first", "--json", "--output", tmp_path / "first.json")
    assert json.loads((tmp_path / "first.json").read_text())["schema"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tracker-project", "digits"], "are for --to, which is missing"),
        (["--tracker-artifacts"], "are for --to, which is missing"),
        (["--to", "tensorboard", "--json"], "found --json or --output too"),
        (["--to", "tensorboard", "--output", "page.html"], "found --json or --output too"),
    ],
)
def test_options_that_would_do_nothing_are_refused(runs, words, message):
    with pytest.raises(ConfigurationError, match=message):
        report("first", *words)
    assert not (runs / "first" / "trackers").exists()


def test_a_file_that_cannot_be_written_is_said(runs):
    with pytest.raises(
        ConfigurationError, match="Cannot write the report to nowhere/x: No such file"
    ):
        report("first", "--output", "nowhere/x")


@pytest.mark.process
def test_an_unknown_run_ends_with_a_message_and_2(runs):
    command = [sys.executable, "-m", "phalanx", "report", "nix"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("phalanx: There is no run 'nix', neither in runs nor as a path.")
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_making_it_imports_no_tensorflow(runs):
    program = (
        "import sys\nsys.argv = ['phalanx', 'report', 'first']\nfrom phalanx.cli import main\n"
        "try:\n main()\nfinally:\n"
        " print(sorted({'tensorflow', 'keras', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr
