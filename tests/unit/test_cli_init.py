"""`phalanx init`: where it writes the script, which commands it prints, and what it refuses."""

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.init import TEMPLATE, commands
from phalanx.diagnostics.lint.check import check_text
from phalanx.errors import ConfigurationError


def init(*words):
    return CliRunner().invoke(app, ["init", *words])


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ([], "train.py"),
        (["new"], "new/train.py"),
        (["new/below"], "new/below/train.py"),
        (["below/fit.py"], "below/fit.py"),
        (["there.py"], "there.py/train.py"),
    ],
)
def test_where_the_script_is_written(place, words, script):
    (place / "there.py").mkdir()
    result = init(*words)
    assert result.exit_code == 0, result.output
    text = (place / script).read_text()
    assert f"phalanx run --workers 2 {script.rsplit('/', 1)[-1]}" in text
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("phalanx r")] == [
        f"phalanx run --workers 1 --seed 1 {script}",
        f"phalanx run --workers 2 --seed 1 {script}",
        "phalanx report",
    ]


def test_a_path_is_quoted_for_the_shell(place):
    assert commands(place / "my runs" / "train.py")[0].endswith("'")


def test_a_file_that_exists_is_not_changed(place):
    (place / "train.py").write_text("mine")
    for words in ([], ["."], ["train.py"]):
        assert isinstance(init(*words).exception, ConfigurationError)
    (place / "dangling.py").symlink_to(place / "elsewhere.py")
    assert isinstance(init("dangling.py").exception, ConfigurationError)
    assert (place / "train.py").read_text() == "mine"
    assert not (place / "elsewhere.py").exists()


def test_a_file_in_place_of_a_directory(place):
    (place / "file").write_text("mine")
    assert isinstance(init("file/train.py").exception, ConfigurationError)


def test_the_script_has_no_known_mistakes():
    assert check_text(TEMPLATE.read_text(), "train.py") == []
