import json
from datetime import datetime

import pytest

from phalanx.errors import ConfigurationError
from phalanx.launcher.run_dir import create_run_dir, saved_run, write_run_file
from phalanx.launcher.run_layout import AttemptPaths

NOON = datetime(2026, 11, 1, 12, 0, 5)


def test_the_name_is_the_time(tmp_path):
    assert create_run_dir(tmp_path / "runs", None, NOON).name == "20261101-120005"


def test_two_runs_in_one_second(tmp_path):
    names = [create_run_dir(tmp_path, None, NOON).name for _ in range(3)]
    assert names == ["20261101-120005", "20261101-120005-2", "20261101-120005-3"]


def test_a_name_is_taken_once(tmp_path):
    path = create_run_dir(tmp_path, "first", NOON)
    assert path == tmp_path / "first"
    assert create_run_dir(tmp_path, "first", NOON) == path  # Still empty.
    write_run_file(path, {"seed": 1})
    with pytest.raises(ConfigurationError, match=r"a run in .*first already"):
        create_run_dir(tmp_path, "first", NOON)


def test_a_run_that_has_saved_and_stopped_continues_where_it_lies(tmp_path):
    path = create_run_dir(tmp_path, "first", NOON)
    write_run_file(path, {"seed": 1, "result": {"exit_code": 75}})
    assert create_run_dir(tmp_path, "first", NOON) == path
    assert saved_run(path)["seed"] == 1
    write_run_file(path, {"seed": 1, "result": {"exit_code": 0}})
    assert saved_run(path) is None
    with pytest.raises(ConfigurationError, match="already"):
        create_run_dir(tmp_path, "first", NOON)


def test_attempts_are_counted_on(tmp_path):
    assert AttemptPaths.next(tmp_path) == 0
    for name in ("0", "1", "10", "notes"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert AttemptPaths.next(tmp_path) == 11


def test_a_place_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="--run-dir"):
        create_run_dir(tmp_path / "file", None, NOON)


def test_the_run_file_is_complete(tmp_path):
    write_run_file(tmp_path, {"run_dir": tmp_path})
    assert json.loads((tmp_path / "run.json").read_text()) == {"run_dir": str(tmp_path)}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_only_the_owner_can_read_a_new_run(tmp_path):
    for name in (None, "named"):
        path = create_run_dir(tmp_path / "runs", name, NOON)
        assert path.stat().st_mode & 0o777 == 0o700
    write_run_file(path, {"seed": 1})
    assert (path / "run.json").stat().st_mode & 0o777 == 0o600


def test_existing_directories_keep_their_permissions(tmp_path):
    root = tmp_path / "runs"
    (root / "named").mkdir(parents=True)
    for path, mode in ((root, 0o775), (root / "named", 0o750)):
        path.chmod(mode)
    create_run_dir(root, "named", NOON)
    create_run_dir(root, None, NOON)
    assert [path.stat().st_mode & 0o777 for path in (root, root / "named")] == [0o775, 0o750]


def test_a_new_directory_of_all_runs_follows_the_umask(tmp_path):
    (tmp_path / "other").mkdir()
    create_run_dir(tmp_path / "runs", None, NOON)
    assert (tmp_path / "runs").stat().st_mode == (tmp_path / "other").stat().st_mode
