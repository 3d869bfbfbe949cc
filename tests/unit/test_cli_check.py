"""`phalanx check`: what it prints, and how it exits."""

import json

import pytest
from typer.testing import CliRunner

from phalanx.cli.app import app

ERROR = "print(layer.kernel.gradient)\n"
WARNING = "import tf_keras\n"
HINT = "import horovod.keras as hvd\nmodel.fit(x, verbose=hvd.rank() == 0)\n"


@pytest.fixture
def script(tmp_path):
    return tmp_path / "train.py"


def check(*words):
    return CliRunner().invoke(app, ["check", *map(str, words)])


@pytest.mark.parametrize(
    ("text", "code", "strict_code"),
    [("x = 1\n", 0, 0), (HINT, 0, 0), (WARNING, 0, 1), (ERROR, 1, 1)],
)
def test_exit_codes(script, text, code, strict_code):
    script.write_text(text)
    assert check(script).exit_code == code
    assert check("--strict", script).exit_code == strict_code


def test_a_finding_is_shown_as_a_compiler_would(script):
    script.write_text(f"if True:\n\t{ERROR}")
    lines = check(script).stdout.splitlines()
    assert lines[0].endswith("[no-such-gradient]")
    assert lines[0].startswith(f"{script}:2:8: error: ")
    assert lines[1] == "2 |     print(layer.kernel.gradient)"
    assert lines[2] == "  |           " + "^" * len("layer.kernel.gradient")
    assert lines[3].startswith("  why: ")
    assert lines[4].startswith("  remedy: ")
    assert lines[-1] == "1 script: 1 error"


def test_several_paths_and_their_counts(script, tmp_path):
    script.write_text(ERROR + WARNING + HINT)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.py").write_text(ERROR)
    shown = check(script, tmp_path / "more").stdout
    assert shown.endswith("2 scripts: 2 errors, 1 warning, 1 hint\n")


def test_findings_for_machines(script):
    script.write_text(ERROR)
    reported = json.loads(check("--json", script).stdout)
    (finding,) = reported.pop("findings")
    assert reported == {"schema": 1, "scripts": 1}
    assert (finding["rule"], finding["line"], finding["column"]) == ("no-such-gradient", 1, 7)
    assert finding["path"] == str(script)
    assert finding["severity"] == "error"
    assert finding["remedy"]


def test_nothing_found_is_said(script):
    script.write_text("x = 1\n")
    assert check(script).stdout == "1 script: nothing found\n"
