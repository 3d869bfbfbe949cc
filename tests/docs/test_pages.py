"""Links lead somewhere, and what a page says of the program is what the program says."""

import ast
import re
import tomllib
from importlib.metadata import version

import pytest
import typer
from packaging.requirements import Requirement
from pages import PAGES, ROOT, anchors, links, prose

from phalanx.cli.app import app

SOURCE = ROOT / "src" / "phalanx"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for target in links(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_every_page_can_be_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / target).resolve() for target in links(index)}
    assert {page for page in PAGES if ROOT / "docs" in page.parents} - listed == {index}


def test_keras_and_tensorflow_are_bounded_to_what_was_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    listed = [*project["dependencies"], *optional["cpu"], *optional["gpu"], *optional["dev"]]
    requested = {each.name: each for each in map(Requirement, listed)}
    for name in ("keras", "tensorflow-cpu", "tensorflow", "tf-keras"):
        limits = {limit.operator: limit.version for limit in requested[name].specifier}
        assert set(limits) == {">=", "<"}, name
        least, before = (int(limits[each].split(".")[1]) for each in (">=", "<"))
        to = "to" if before - least > 2 else "or"
        title = "Keras" if name == "keras" else "TensorFlow"
        major = limits[">="].split(".")[0]
        output = f"{title} {major}.{least} {to} {major}.{before - 1}"
        assert output in prose(ROOT / "README.md").replace("\n", " ")
    assert requested["keras"].specifier.contains(version("keras"))
    assert requested["tf-keras"].specifier.contains(version("tf-keras"))


def test_the_options_are_those_of_the_command():
    command = typer.main.get_command(app).commands["run"]
    options = [p for p in command.params if p.param_type_name == "option"]
    real = {name for p in options for name in (*p.opts, *p.secondary_opts)}
    rows = re.findall(r"^\| (`-.+?) \|", prose(ROOT / "docs" / "cli.md"), re.MULTILINE)
    written = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(rows)))
    assert written == real | {"-h", "--help"}


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("watch", "watch-and-report.md"),
        ("report", "watch-and-report.md"),
        ("predict", "predict.md"),
        ("evaluate", "predict.md"),
    ],
)
def test_the_options_of_a_command_with_a_section(name, page):
    command = typer.main.get_command(app).commands[name]
    real = {flag for p in command.params if p.param_type_name == "option" for flag in p.opts}
    section = prose(ROOT / "docs" / page).split(f"## `phalanx {name} ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`-.+?) \|", section, re.MULTILINE)
    written = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(rows)))
    assert written == real | {"-h", "--help"}


def test_the_pages_wrap_and_name_no_place_on_a_machine():
    for page in PAGES:
        text = page.read_text()
        assert not re.search(r"/(?:home|root|work|tmp)/", text), page
        if page.name not in ("equivalence-table.md", "benchmarks.md"):
            long = [s for s in prose(page).splitlines() if len(s) > 104 and not s.startswith("|")]
            assert not long, (page, long)


def test_the_readmes_table_is_from_the_complete_table():
    """README's rows are rows that benchmarks/equivalence.py has written."""
    whole = (ROOT / "docs" / "equivalence-table.md").read_text()
    section = (ROOT / "README.md").read_text().split("## Comparison ")[1].split("\n## ")[0]
    rows = [s for s in section.splitlines() if s.startswith("| ")]
    assert len(rows) > 5
    assert [row for row in rows if row not in whole] == []


def raised_messages():
    """(where, text) of every message that Phalanx raises on purpose; what varies is NUL."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Raise)
                and isinstance(node.exc, ast.Call)
                and isinstance(node.exc.func, ast.Name)
                and node.exc.func.id in OWN_ERRORS
                and node.exc.args
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", constant_text(node.exc.args[0])


def constant_text(node):
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(constant_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return constant_text(node.left) + constant_text(node.right)
    return "\0"


OWN_ERRORS = {
    node.name
    for node in ast.parse((SOURCE / "errors.py").read_text()).body
    if isinstance(node, ast.ClassDef)
}


def documented_messages():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    return re.findall(r"\*\*`([^`]+)`", text)


def says(message, pattern):
    """Whether `pattern`, in which "..." stands for anything, is in `message`."""
    plain = message.replace("`", "")
    parts = [part.strip() for part in pattern.split("...")]
    return re.search(".*".join(map(re.escape, filter(None, parts))), plain, re.DOTALL)


def test_every_message_is_in_the_troubleshooting():
    patterns = documented_messages()
    missing = [
        (where, text)
        for where, text in raised_messages()
        if text.strip("\0 ") and not any(says(text, pattern) for pattern in patterns)
    ]
    assert missing == []


def test_the_troubleshooting_invents_no_message():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    own = text[: text.index("## TensorFlow and Keras")].split("## The report")[0]
    source = [text for _, text in raised_messages()]
    source += [constant_text(node) for node in text_of_logs()]
    for module, text in MADE_ELSEWHERE.items():
        assert text in (SOURCE / module).read_text()
    invented = [
        pattern
        for pattern in re.findall(r"\*\*`([^`]+)`", own)
        if not any(says(re.sub(r"%\w", "\0", text), pattern) for text in source)
        and not any(text in pattern for text in MADE_ELSEWHERE.values())
    ]
    assert invented == []


MADE_ELSEWHERE = {
    "data/undivided.py": "so it is not divided",
    "keras_compat/recurrent_states.py": "has stateful=True and a state for",
    "training/context.py": "needs the same",
    "training/step_runner.py": "had NaN or infinite entries at step",
    "training/replica_consistency.py": "Replicas that should hold the same differ",
}
"""Of messages that a function of the module puts together, or a pipeline prints."""


def text_of_logs():
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and node.args and called.attr in LOUD:
                yield node.args[0]


LOUD = ("info", "warning", "warn", "announce")
