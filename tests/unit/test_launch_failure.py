import pytest

from phalanx.launch.failure import FailureRecord

RECORD = FailureRecord(
    rank=1, type="ValueError", message="bad", traceback="Traceback ...", time=12.5, exit_code=1
)


def test_written_and_read(tmp_path):
    RECORD.write(tmp_path / "error.json")
    assert FailureRecord.read(tmp_path / "error.json") == RECORD
    assert len(list(tmp_path.iterdir())) == 1


def test_no_file(tmp_path):
    assert FailureRecord.read(tmp_path / "error.json") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rank": 1}'])
def test_half_a_file(tmp_path, text):
    (tmp_path / "error.json").write_text(text)
    assert FailureRecord.read(tmp_path / "error.json") is None


def test_a_later_version_may_say_more(tmp_path):
    RECORD.write(tmp_path / "error.json")
    text = (tmp_path / "error.json").read_text().replace("{", '{"colour": "red",', 1)
    (tmp_path / "error.json").write_text(text)
    assert FailureRecord.read(tmp_path / "error.json") == RECORD
