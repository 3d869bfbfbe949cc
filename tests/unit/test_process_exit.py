import subprocess
import sys

import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError, UnavailableError
from phalanx.launcher.root_cause import is_secondary
from phalanx.worker.process_exit import exit_code_of, format_traceback, record_failure
from phalanx.worker.run_script import Target, execute


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("bad"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(), 0),
        (SystemExit(None), 0),
        (SystemExit(0), 0),
        (SystemExit(3), 3),
        (SystemExit(256 + 3), 3),
        (SystemExit(-1), 255),
        (SystemExit("no data"), 1),
    ],
)
def test_exit_codes_are_pythons(error, code):
    assert exit_code_of(error) == code


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Run a script and catch what comes out of it."""
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(source):
        path = tmp_path / "train.py"
        path.write_text(source)
        try:
            execute(Target(name=str(path), as_module=False))
        except BaseException as error:
            trace = error.__traceback__.tb_next  # Without this function.
            return record_failure(error.with_traceback(trace), rank=2, now=7.0)
        raise AssertionError("the script ended well")

    return run


def test_the_traceback_begins_in_the_script(ran):
    record = ran("def f():\n    raise ValueError('bad')\nf()\n")
    lines = record.traceback.splitlines()
    assert lines[1].strip().endswith('train.py", line 3, in <module>')
    assert lines[-1] == "ValueError: bad"
    assert (record.rank, record.type, record.time) == (2, "ValueError", 7.0)


def test_leaving_has_no_traceback(ran):
    record = ran("import sys; sys.exit('no data')")
    assert (record.type, record.message, record.traceback) == ("SystemExit", "no data", "")


def test_a_chain_is_reported(ran):
    record = ran("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e")
    assert "ZeroDivisionError" in record.traceback


def test_our_own_error_before_the_script_speaks_for_itself():
    assert record_failure(ConfigurationError("too few GPUs"), rank=0, now=0.0).traceback == ""


def test_our_own_error_in_the_script_has_its_traceback(ran):
    record = ran("from phalanx.errors import DataError\nraise DataError('x')\n")
    assert "train.py" in record.traceback


def test_a_directory_in_use_is_no_consequence_of_a_peer_s_death():
    own, of_tensorflow = (
        record_failure(error, rank=0, now=0.0)
        for error in (UnavailableError("in use"), tf.errors.UnavailableError(None, None, "lost"))
    )
    assert [is_secondary(own), is_secondary(of_tensorflow)] == [False, True]


def test_an_error_without_frames():
    assert format_traceback(ValueError("bad")) == "ValueError: bad\n"


LEAVES = """
import atexit, sys, threading, time
from phalanx.worker import process_exit
process_exit.install_exit_guard()
class Teardown:
    def __del__(self): print("torn down")
late = Teardown()
sys.modules["late"] = late
process_exit._TIMEOUT = 1.0
atexit.register(print, "exit function")
{extra}
process_exit.exit_without_barrier({code})
"""


def leave(code, extra=""):
    return subprocess.run(
        [sys.executable, "-c", LEAVES.format(code=code, extra=extra)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_exit_functions_run_but_no_teardown():
    left = leave(3)
    assert (left.returncode, left.stdout, left.stderr) == (3, "exit function\n", "")


@pytest.mark.process
def test_a_thread_that_stays_is_not_waited_for():
    assert leave(4, "threading.Thread(target=time.sleep, args=(600,)).start()").returncode == 4
