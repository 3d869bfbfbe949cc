"""Private names stay in their rooms where no lint rule sees them: in strings and comments."""

import ast
import re
from pathlib import Path

import phalanx

HOME = Path(phalanx.__file__).parent
ROOMS = ("keras_compat/", "worker/strategy_override.py", "distributed/tensorflow.py")
BY_STRING = ("getattr", "setattr", "hasattr", "delattr")


def findings(text):
    """The lines of a file that name what is private, each with what it says."""
    for number, line in enumerate(text.splitlines(), start=1):
        for named in re.findall(r"\b(?:keras\.src|tensorflow\.python)[\w.]*", line):
            yield f"line {number}: {named}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and any(map(is_private, names_of_attributes(node))):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def names_of_attributes(call):
    """The strings that a call gives as the name of an attribute."""
    if isinstance(call.func, ast.Name) and call.func.id in BY_STRING:
        for name in call.args[1:2]:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def test_private_names_are_used_in_their_rooms_only():
    found = [
        f"{name}, {finding}"
        for path in sorted(HOME.rglob("*.py"))
        if not (name := path.relative_to(HOME).as_posix()).startswith(ROOMS)
        for finding in findings(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_search_finds_private_names_and_no_others():
    wrong = """
getattr(spec, "_value_specs", None)
setattr(model, "_value", 1)
importlib.import_module("keras.src.backend")
tensorflow.python.eager  # noqa
"""
    right = """
getattr(spec, name, "_none")
hasattr(model, "__len__")
importlib.import_module("keras.ops")
"""
    assert [found.split(":")[0] for found in findings(wrong)] == [
        "line 4", "line 5", "line 2", "line 3",
    ]  # fmt: skip
    assert list(findings(right)) == []
