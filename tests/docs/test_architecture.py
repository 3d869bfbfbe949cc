"""The layers that docs/architecture.md names are those that the tests of the house hold."""

import ast
import re

from pages import ROOT


def test_the_page_has_the_layers_of_the_house():
    text = (ROOT / "docs" / "architecture.md").read_text()
    line = re.search(r"<!-- layers -->\n`([^`]+)`\n", text)
    held = ast.parse((ROOT / "tests" / "unit" / "test_package_layers.py").read_text())
    (layers,) = (
        ast.literal_eval(node.value)
        for node in held.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
    assert line
    assert line[1].replace("\n", " ").split(" < ") == layers
