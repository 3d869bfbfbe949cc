"""Which run is meant."""

import json
import os

import pytest

from phalanx.errors import ConfigurationError
from phalanx.report.run_lookup import find_run


def make(root, name, started=None):
    path = root / name
    path.mkdir(parents=True)
    document = {} if started is None else {"started": started}
    (path / "run.json").write_text(json.dumps(document))
    return path


@pytest.fixture
def root(tmp_path):
    make(tmp_path, "old", "2026-01-01T00:00:00+00:00")
    make(tmp_path, "new", "2026-01-03T00:00:00+00:00")
    make(tmp_path, "middle", "2026-01-03T01:00:00+02:00")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_the_newest_by_the_time_of_its_beginning(root):
    os.utime(root / "old")
    assert find_run(None, root).name == "new"


def test_by_name_and_by_path(root, tmp_path_factory):
    assert find_run("old", root) == root / "old"
    elsewhere = make(tmp_path_factory.mktemp("elsewhere"), "third")
    assert find_run(str(elsewhere), root) == elsewhere


def test_a_run_may_have_records_only(root):
    (root / "bare" / "records").mkdir(parents=True)
    assert find_run("bare", root).name == "bare"


@pytest.mark.parametrize("requested", ["nix", "notes"])
def test_an_unknown_run_names_those_that_there_are(root, requested):
    with pytest.raises(ConfigurationError) as failure:
        find_run(requested, root)
    message = str(failure.value)
    assert message.startswith(f"There is no run {requested!r}, neither in {root} nor as a path.")
    assert message.endswith("new, middle, old.")


def test_of_many_runs_some_are_named(tmp_path):
    for number in range(11):
        make(tmp_path, f"r{number}", f"2026-01-{number + 1:02}T00:00:00+00:00")
    with pytest.raises(
        ConfigurationError, match=r": r10, r9, r8, r7, r6, r5, r4, r3 and 3 more\.$"
    ):
        find_run("nix", tmp_path)


@pytest.mark.parametrize("name", ["", "missing"])
def test_without_any_run_it_says_how_to_get_one(tmp_path, name):
    with pytest.raises(ConfigurationError, match="Start one by `phalanx run`"):
        find_run(None, tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"Runs in .*: none"):
        find_run("nix", tmp_path / name)
