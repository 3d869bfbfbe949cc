"""`phalanx check`: each known mistake is found at its line, and what is right is left alone.

The scripts in check_cases/ follow questions and issues that people have written; a
comment `# expect: rule` stands where a finding must be, and nowhere else may there be one.
"""

import re
from pathlib import Path

import pytest

from phalanx.diagnostics.lint.check import check_file, check_text, scripts_in
from phalanx.diagnostics.lint.rules import RULES
from phalanx.errors import ConfigurationError, ScriptError

CASES = sorted((Path(__file__).parent / "check_cases").glob("*.py"))
ROOT = Path(__file__).parents[2]


def expected(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = re.search(r"# expect: ([\w, -]+)", line)
        for rule in match[1].split(", ") if match else ():
            yield number, rule


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_what_is_found_and_where(case):
    found = [(finding.line, finding.rule) for finding in check_file(case)]
    assert sorted(found) == sorted(expected(case.read_text()))


def test_every_rule_has_a_case():
    tried = {rule for case in CASES for _, rule in expected(case.read_text())}
    assert tried == {rule.name for rule in RULES}


def test_names_of_rules_are_given_once():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("script", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_the_examples_are_right(script):
    assert check_file(script) == []


WRONG = "print(layer.kernel.gradient)"


@pytest.mark.parametrize(
    ("comment", "is_found"),
    [
        ("", True),
        ("# phalanx: ignore[no-such-gradient]", False),
        ("# phalanx: ignore[same-path, no-such-gradient]", False),
        ("# phalanx: ignore", False),
        ("# phalanx: ignore[same-path]", True),
        ("# phalanx ignore", True),
    ],
)
def test_a_comment_turns_a_rule_off(comment, is_found):
    assert bool(check_text(f"{WRONG}  {comment}\n", "a.py")) is is_found


def test_a_comment_is_no_text():
    assert check_text(f'{WRONG}; x = "# phalanx: ignore"\n', "a.py")


def test_a_comment_within_what_was_found():
    assert check_text("model.get_gradients(\n    loss,  # phalanx: ignore\n)\n", "a.py") == []


def test_columns_are_counted_in_characters():
    (finding,) = check_text("s = 'äöü'; layer.kernel.gradient\n", "a.py")
    assert (finding.line, finding.column, finding.width) == (1, 12, len("layer.kernel.gradient"))


def test_functions_that_call_each_other_end():
    check_text("def a():\n    b()\n    b()\ndef b():\n    a()\n    a()\na()\n", "a.py")


def test_a_directory_is_its_scripts(tmp_path):
    for name in ("b.py", "deep/a.py", ".venv/x.py", "venv/lib/y.py", "note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert scripts_in(tmp_path) == [tmp_path / "b.py", tmp_path / "deep/a.py"]


def test_a_directory_without_scripts(tmp_path):
    with pytest.raises(ConfigurationError, match="found no Python file"):
        scripts_in(tmp_path)


@pytest.mark.parametrize("source", ["x = (\n", None])
def test_what_cannot_be_read(tmp_path, source):
    path = tmp_path / "a.py"
    if source:
        path.write_text(source)
    with pytest.raises(ScriptError):
        check_file(path)
