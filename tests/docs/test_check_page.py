"""docs/check.md has every rule of `phalanx check`, with how bad it is, and no other."""

import re

from pages import ROOT

from phalanx.diagnostics.lint.check import check_text
from phalanx.diagnostics.lint.rules import RULES

PAGE = (ROOT / "docs" / "check.md").read_text()


def test_the_table_has_every_rule():
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| .+ \| .+ \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted((rule.name, rule.severity) for rule in RULES)


def test_the_finding_that_is_shown_is_found():
    """With the words of today's rule."""
    name, line, column, what, rule = re.search(
        r"^(train\.py):(\d+):(\d+): error: (.+) \[([\w-]+)\]$", PAGE, re.MULTILINE
    ).groups()
    source = "import keras\n" * 12 + "if rank == 0:\n    model.fit(data, batch_size=64)\n"
    (found,) = check_text(source, name)
    assert (str(found.line), str(found.column), found.what, found.rule) == (
        line,
        column,
        what,
        rule,
    )
    assert f"  why: {found.why}\n  remedy: {found.remedy}\n" in PAGE
