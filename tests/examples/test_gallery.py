"""Each script of the gallery says the same numbers on its own and on two workers."""

import gallery
import pytest

BOUND = 1e-5
"""How far numbers may be apart, relatively: float32's rounding after some tens of steps."""

IN_MAKE_TEST = {"image_classification_subclassed"}

NAMES = sorted(path.stem for path in gallery.SCRIPTS.glob("*.py"))


def case(name):
    return pytest.param(name, marks=[] if name in IN_MAKE_TEST else [pytest.mark.full])


@pytest.mark.parametrize("name", [case(name) for name in NAMES])
def test_two_workers_say_what_one_device_does(name, tmp_path, shared_fork_server):
    script = gallery.SCRIPTS / f"{name}.py"
    wanted = gallery.plain(script, tmp_path / "plain")
    found = gallery.under_phalanx(script, tmp_path / "two", shared_fork_server)
    apart = gallery.differences(wanted, found, BOUND)
    assert not apart, "\n".join(apart)


def test_the_scripts_do_not_know_phalanx():
    assert len(NAMES) >= 20
    assert set(NAMES) >= IN_MAKE_TEST
    for path in gallery.SCRIPTS.glob("*.py"):
        assert "phalanx" not in path.read_text().lower(), path.name


def test_the_outputs_of_the_site_are_of_these_scripts():
    """`python benchmarks/gallery.py --write` writes them, and the table of docs/gallery.md."""
    outputs = {path.name for path in (gallery.SCRIPTS / "outputs").glob("*.txt")}
    assert outputs == {f"{name}.{way}.txt" for name in NAMES for way in ("one", "two")}
    page = (gallery.SCRIPTS.parents[1] / "docs" / "gallery.md").read_text()
    for name in NAMES:
        assert f"(../examples/gallery/{name}.py)" in page
        for way in ("one", "two"):
            text = (gallery.SCRIPTS / "outputs" / f"{name}.{way}.txt").read_text()
            assert text.startswith("$ ")
            assert "RESULT " in text


def test_differences_are_named():
    wanted = {"loss": [1.0, 2.0], "text": "a", "rows": 3}
    assert gallery.differences(wanted, {"loss": [1.0, 2.00001], "text": "a", "rows": 3}, 1e-5) == []
    found = {"loss": [1.0, 2.0001], "text": "b", "rows": 4}
    lines = gallery.differences(wanted, found, 1e-5)
    assert [line.split(":")[0] for line in lines] == ["loss[1]", "text", "rows"]
    assert gallery.differences([1.0], [1.0, 2.0], 1e-5)
    assert gallery.differences({"loss": 1.0}, {"loss": float("nan")}, 1e-5)
