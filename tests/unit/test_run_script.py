import pytest

from phalanx.worker.run_script import Target, execute


@pytest.fixture(autouse=True)
def own_sys(monkeypatch):
    import sys

    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


SOURCE = "import sys\nfrom beside import x\nargv, name = list(sys.argv), __name__\n"


def test_a_script_finds_its_arguments_and_neighbours(tmp_path):
    (tmp_path / "beside.py").write_text("x = 'script'")
    (tmp_path / "train.py").write_text(SOURCE)
    target = Target.from_arguments(["-f", str(tmp_path / "train.py"), "-m", "--lr", "1"])
    seen = execute(target)
    assert seen["argv"] == [str(tmp_path / "train.py"), "-m", "--lr", "1"]
    assert seen["name"] == "__main__"


CHANGES_DIRECTORY = """
import os, pathlib, sys
argv = list(sys.argv)
os.chdir("/")
text = pathlib.Path(__file__).read_text()
"""


def test_a_script_finds_itself_in_another_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CHANGES_DIRECTORY)
    seen = execute(Target.from_arguments(["-f", "train.py"]))
    assert seen["text"] == CHANGES_DIRECTORY
    assert seen["argv"] == ["train.py"]
    assert seen["__file__"] == str(tmp_path / "train.py")


def test_a_module_is_found_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "run_it.py").write_text("import sys\nargv = list(sys.argv)\n")
    seen = execute(Target.from_arguments(["-m", "shop.run_it", "a"]))
    assert seen["argv"] == [str(tmp_path / "shop" / "run_it.py"), "a"]
    assert seen["__package__"] == "shop"


def test_only_the_launchers_words():
    with pytest.raises(ValueError, match="expected -f SCRIPT or -m MODULE"):
        Target.from_arguments(["train.py", "x"])
