"""The layers that docs/architecture.md names are those to which the linter holds the imports."""

import re
import tomllib

from pages import ROOT


def test_the_page_has_the_layers_of_the_linter():
    text = (ROOT / "docs" / "architecture.md").read_text()
    line = re.search(r"<!-- layers -->\n`([^`]+)`\n", text)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    assert line
    assert line[1].replace("\n", " ").split(" < ") == layers[::-1]
