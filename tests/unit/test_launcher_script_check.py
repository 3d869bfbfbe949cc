import sys
from importlib.util import spec_from_file_location
from typing import ClassVar

import pytest

from phalanx.errors import ScriptError
from phalanx.launcher.script_check import check_module, check_script


def test_a_good_script_is_not_run(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('run')")
    check_script(path)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"x = (\n", "train.py:1: SyntaxError"),
        (b"if 1:\nx = 1\n", "train.py:2: IndentationError"),
        (b"x = 1\n\0", "train.py"),
        (b"x = '\xff'\n", "train.py"),
    ],
)
def test_what_is_not_python(tmp_path, source, says):
    path = tmp_path / "train.py"
    path.write_bytes(source)
    with pytest.raises(ScriptError) as refused:
        check_script(path)
    assert says in str(refused.value)
    assert "No worker was started" in str(refused.value)


def test_other_encodings_are_python(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    check_script(path)


def test_a_missing_script(tmp_path):
    with pytest.raises(ScriptError, match=r"no script .*train\.py.*-m train"):
        check_script(tmp_path / "train.py")


def test_a_directory(tmp_path):
    with pytest.raises(ScriptError, match="is not a file"):
        check_script(tmp_path)


@pytest.fixture
def tree(tmp_path):
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "train.py").write_text("x = 1")
    (package / "broken.py").write_text("x = (")
    (tmp_path / "single.py").write_text("x = 1")
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text("x = 1")
    return [str(tmp_path)]


@pytest.mark.parametrize("name", ["shop.train", "single", "tool"])
def test_good_modules(tree, name):
    check_module(name, tree)
    assert "shop" not in sys.modules


class EditableFinder:
    """As setuptools puts one into `sys.meta_path` for an editable install with a `src` layout."""

    mapping: ClassVar = {}

    @classmethod
    def find_spec(cls, name, _path=None, _target=None):
        place = cls.mapping.get(name)
        return place and spec_from_file_location(name, place / "__init__.py")


def test_a_module_of_an_editable_install(tmp_path, monkeypatch):
    package = tmp_path / "src" / "editable_shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "train.py").write_text("x = 1")
    monkeypatch.setattr(EditableFinder, "mapping", {"editable_shop": package})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder])
    check_module("editable_shop.train")
    with pytest.raises(ScriptError, match="no module"):
        check_module("editable_shop.nope")
    assert "editable_shop" not in sys.modules


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope", "no module 'nope'"),
        ("shop.nope", "no module 'shop.nope'"),
        ("single.nope", "no module"),
        ("shop", "no module 'shop'"),  # It has no __main__.
        ("shop.broken", "SyntaxError"),
        ("shop/train.py", "dotted name"),
        ("", "dotted name"),
    ],
)
def test_bad_modules(tree, name, says):
    with pytest.raises(ScriptError, match=says):
        check_module(name, tree)
