import pytest

from phalanx.launcher.failure import FailureRecord

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


def test_the_frames_that_tensorflow_puts_first_are_no_summary():
    message = (
        "Graph execution error:\n\nDetected at node Sum defined at (most recent call last):\n"
        '  File "train.py", line 9, in <module>\n\nShapes do not fit: [12] and [20].\nMore.'
    )
    failure = FailureRecord(
        rank=1, type="InvalidArgumentError", message=message, traceback="", time=0
    )
    assert failure.summary == "InvalidArgumentError: Shapes do not fit: [12] and [20]."
    function = "{{function_node __inference_f_7}} Shapes do not fit\n\t [[{{node Sum}}]] [Op:f]"
    several = "1 root error(s) found.\n  (0) ABORTED: lost\n0 derived errors ignored."
    layer = "Exception encountered when calling L.call().\n\n\x1b[1mtoo wide\x1b[0m"
    for text, output in (
        (function, "Shapes do not fit"),
        (several, "lost"),
        (layer, "too wide (calling L.call())"),
    ):
        reported = FailureRecord(rank=1, type="E", message=text, traceback="", time=0)
        assert reported.summary == f"E: {output}"
    alone = FailureRecord(
        rank=1, type="InternalError", message="Graph execution error:", traceback="", time=0
    )
    assert alone.summary == "InternalError: Graph execution error:"
