"""What the pages about the code name is there: layers, files and functions."""

import re
import tomllib

import pytest
from pages import ROOT

SOURCE = ROOT / "src" / "phalanx"
FILES = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
NAMES = {path.rsplit("/", 1)[-1] for path in FILES}


def test_the_page_has_the_layers_of_the_linter():
    text = (ROOT / "docs" / "architecture.md").read_text()
    line = re.search(r"<!-- layers -->\n`([^`]+)`\n", text)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    assert line
    assert line[1].replace("\n", " ").split(" < ") == layers[::-1]


@pytest.mark.parametrize("page", ["architecture.md", "internals.md"])
def test_files_and_names_of_the_page_exist(page):
    text = (ROOT / "docs" / page).read_text()
    paths = set(re.findall(r"(?<![\w./*])(\w+(?:/\w+)+\.py)\b", text)) - {"phalanx/__init__.py"}
    assert {path for path in paths if not path.startswith("tests/")} <= FILES
    assert all((ROOT / path).exists() for path in paths if path.startswith("tests/"))
    assert set(re.findall(r"(?<![\w/*.])(\w+\.py)\b", text)) <= NAMES | {"train.py"}
    folders = set(re.findall(r"`((?:\w+/)+)`", text))
    assert {folder for folder in folders if not (SOURCE / folder).is_dir()} == set()
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for name in re.findall(r"`([A-Z]\w*[a-z]\w*)`", text):
        assert re.search(rf"\b{name}\b", source), name


def test_a_run_a_step_and_a_checkpoint_pass_few_files():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for part in ("One run", "One step", "One checkpoint"):
        section = text.split(f"## {part}\n")[1].split("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert 8 <= len(rows) <= 12
