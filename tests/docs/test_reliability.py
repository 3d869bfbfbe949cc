"""Each promise of `docs/reliability.md` and `docs/security.md` has a test that exists."""

import ast
import re

import pytest
from pages import ROOT

PAGE = ROOT / "docs" / "reliability.md"
_TEST = re.compile(r"`(?P<file>tests/[\w/.-]+\.py)::(?P<name>\w+)`")
_ROW = re.compile(r"^\| (?P<promise>.+?) \| (?P<tests>.+) \|$", re.MULTILINE)


def names_in(path):
    """The names of a file's tests, those in classes too."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("page", [PAGE, ROOT / "docs" / "security.md"], ids=lambda page: page.name)
def test_the_tests_that_hold_promises_exist(page):
    named = _TEST.findall(page.read_text())
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or name not in names_in(ROOT / file)
    ]
    assert named
    assert not missing, "\n".join(missing)


def test_each_promise_names_a_test():
    rows = [row for row in _ROW.findall(PAGE.read_text()) if row[0] not in ("promise", "---")]
    assert len(rows) > 20
    without = [promise for promise, tests in rows if not _TEST.search(tests)]
    assert not without, "\n".join(without)
