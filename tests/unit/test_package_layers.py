"""The house: imports go down only, private names stay in their rooms, files stay small."""

import ast
import re
from pathlib import Path

import pytest

import phalanx

HOME = Path(phalanx.__file__).parent
FILES = sorted(HOME.rglob("*.py"))
LAYERS = [
    "errors", "records", "flight", "cluster", "launch", "horovod", "worker", "observe",
    "checkpoint", "gradients",
    "seam", "clip", "schedules", "data", "state", "callbacks", "training", "testing", "doctor",
    "debug", "lint", "report", "cli",
]  # fmt: skip
PRIVATE_ROOMS = ("seam/", "worker/adopt.py")
MOST_LINES = 250


def name_of(path):
    return path.relative_to(HOME).as_posix()


def layer_of(module):
    """The layer of "phalanx.data.place", or of a path's first part."""
    return module.split(".")[1] if module.startswith("phalanx.") else None


def imports_of(path):
    """Every module of Phalanx that a file imports, inside functions too."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively"
            if node.module == "phalanx":
                yield from (f"phalanx.{alias.name}" for alias in node.names)
            else:
                yield node.module


def is_part_of_the_house(path):
    return name_of(path) not in ("__init__.py", "__main__.py")


HOUSE = [path for path in FILES if is_part_of_the_house(path)]


@pytest.mark.parametrize("path", HOUSE, ids=name_of)
def test_imports_go_down_only(path):
    own = name_of(path).split("/")[0].removesuffix(".py")
    allowed = LAYERS[: LAYERS.index(own) + 1]
    for module in imports_of(path):
        layer = layer_of(module)
        if layer is None or (own, module) in PUBLIC_NAMES_ALLOWED:
            continue
        assert layer in allowed, f"{name_of(path)} ({own}) imports {module}, which is above it"


# The bootstrap flips the public switch, and the command line prints the public version.
PUBLIC_NAMES_ALLOWED = {("worker", "phalanx.enable"), ("cli", "phalanx.__version__")}


def test_every_folder_has_its_layer():
    folders = {name_of(path).split("/")[0].removesuffix(".py") for path in HOUSE}
    assert folders == set(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_one_idea(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    "layer", ["errors", "records", "flight", "cluster", "launch", "lint", "cli"]
)
def test_up_to_the_launcher_nothing_imports_tensorflow(layer):
    for path in HOUSE:
        if name_of(path).split("/")[0].removesuffix(".py") == layer:
            heavy = {m.split(".")[0] for m in imports_of(path)} & {"tensorflow", "keras", "numpy"}
            assert not heavy, f"{name_of(path)} imports {heavy}"


def test_reports_import_no_tensorflow():
    for path in HOME.glob("report/**/*.py"):
        heavy = {m.split(".")[0] for m in imports_of(path)} & {"tensorflow", "keras", "pandas"}
        assert not heavy, f"{name_of(path)} imports {heavy}"


OUTSIDE = [path for path in FILES if not name_of(path).startswith(PRIVATE_ROOMS)]


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_private_modules_are_named_in_their_rooms_only(path):
    found = re.findall(r"\b(?:keras\.src|tensorflow\.python)[\w.]*", path.read_text())
    assert not found, f"{name_of(path)} names {found}"


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_private_attributes_of_others_are_used_in_their_rooms_only(path):
    tree = ast.parse(path.read_text())
    own = set(own_attributes(tree))
    found = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if private_access(node) and getattr(node, "attr", None) not in own
    ]
    assert not found, f"{name_of(path)} reads {found}"


# Python's own, documented although they begin with an underscore.
DOCUMENTED = {"os._exit", "sys._getframe"}


def own_attributes(tree):
    """The names that the classes of a file give their own objects, or themselves."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("self", "cls"):
                yield target.attr


def private_access(node):
    """Whether a node reads `value._name` of something but `self` or `cls`, or by getattr."""
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return is_private(node.attr) and not own and ast.unparse(node) not in DOCUMENTED
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
        return node.func.id in ("getattr", "setattr", "hasattr") and any(
            isinstance(name, str) and is_private(name) for name in named
        )
    return False


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("model._value", True),
        ("getattr(spec, '_value_specs', None)", True),
        ("self._own", False),
        ("self._model._private", True),
        ("os._exit(1)", False),
        ("model.__class__", False),
    ],
)
def test_the_search_for_private_attributes_finds_them(code, is_found):
    assert any(private_access(node) for node in ast.walk(ast.parse(code))) is is_found
