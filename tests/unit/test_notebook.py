import functools
import inspect
import io
import linecache
import pickle
import threading

import pytest

import phalanx
from phalanx.cli.run_options import RunCommand
from phalanx.errors import ConfigurationError, RunFailedError
from phalanx.launcher.failure import FailureRecord
from phalanx.launcher.parent_death import LAUNCHER_VARIABLE
from phalanx.launcher.root_cause import WorkerExit
from phalanx.launcher.run_result import RunResult
from phalanx.notebook.cell_output import CellOutput
from phalanx.notebook.failure import raise_failure
from phalanx.notebook.kernel_process import launcher_environment
from phalanx.notebook.launch import launch, run_command
from phalanx.notebook.magic import read_line
from phalanx.notebook.pickled_call import pickle_function

CLEAR = b"\r\x1b[2K"


def shown(*chunks):
    """What a front end shows in the end: each line as its last text over the ones before."""
    stream = io.StringIO()
    output = CellOutput(stream)
    for source, chunk in chunks:
        output.feed(source, chunk)
    output.close()
    return [overwritten(line) for line in stream.getvalue().split("\n")]


def overwritten(line):
    text = ""
    for part in line.split("\r"):
        text = part + text[len(part) :]
    return text.rstrip()


def test_a_progress_bar_is_one_line():
    bars = [b"[worker 0] 1/3 loss: 0.5000", CLEAR + b"[worker 0] 2/3 loss: 1"]
    end = CLEAR + b"[worker 0] 3/3\r\n"
    assert shown((0, b"Epoch 1\r\n"), *((0, bar) for bar in bars), (0, end)) == [
        "Epoch 1",
        "[worker 0] 3/3",
        "",
    ]


def test_a_message_goes_above_the_bar():
    text = shown((0, b"1/3 loss: 0.5000"), (1, b"phalanx: hello\n"), (0, CLEAR + b"2/3"))
    assert text == ["phalanx: hello", "2/3", ""]


def test_a_bar_that_was_not_finished_ends_its_line():
    stream = io.StringIO()
    output = CellOutput(stream)
    output.feed(0, b"1/3")
    output.close()
    assert stream.getvalue().endswith("\n")


def test_the_options_are_those_of_a_run(tmp_path):
    command = run_command(
        "train.py",
        ["--epochs", "2"],
        workers=2,
        env={"A": "b=c"},
        run_dir=str(tmp_path),
        max_restarts=1,
        devices_per_worker=1,
    )
    options = command.options
    assert (options.workers, options.max_restarts, options.run_dir) == (2, 1, tmp_path)
    assert (options.arguments, options.env) == (("--epochs", "2"), {"A": "b=c"})
    assert command.cluster == "none"


@pytest.mark.parametrize("name", ["worker", "hosts", "target", "cluster"])
def test_an_unknown_option_is_refused(name):
    with pytest.raises(ConfigurationError, match=repr(name)) as raised:
        run_command("train.py", [], **{name: 2})
    assert "workers" in str(raised.value)


def test_a_wrong_value_is_refused_before_a_process_starts():
    with pytest.raises(ConfigurationError, match="--strategy"):
        launch(print, strategy="ring")
    with pytest.raises(ConfigurationError, match="kwargs"):
        launch("train.py", kwargs={"epochs": 2})
    with pytest.raises(ConfigurationError, match="as_module"):
        launch(print, as_module=True)


def test_a_worker_launches_no_workers(monkeypatch):
    monkeypatch.setenv("PHALANX_WORKER_SPEC", "{}")
    with pytest.raises(ConfigurationError, match="found it in a worker"):
        launch(print)


def test_the_options_are_those_of_the_command():
    names = list(inspect.signature(phalanx.launch).parameters)
    assert names[:4] == ["target", "args", "kwargs", "workers"]
    own = {"target", "args", "kwargs"}
    assert set(names) - own < set(RunCommand.__dataclass_fields__)
    with pytest.raises(ConfigurationError, match="workrs"):
        phalanx.launch(print, workrs=2)


def test_what_cannot_travel_is_named():
    captured = threading.Lock()

    def in_closure():
        return captured

    scope = {"__name__": "__main__", "shared": captured}
    exec("def outer():\n    def inner():\n        return shared\n    return inner()", scope)

    def nothing(lock, other=None):
        return lock

    for function, args, kwargs, name in (
        (in_closure, (), {}, "captured"),
        (scope["outer"], (), {}, "shared"),
        (nothing, (captured,), {}, "args[0]"),
        (nothing, (1,), {"other": captured}, "other"),
        (functools.partial(nothing, captured), (), {}, "args[0]"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            pickle_function(function, args, kwargs)
        assert f"uses {name!r}, a _thread.lock" in str(raised.value)


def test_a_function_keeps_the_name_and_the_lines_of_its_cell(monkeypatch):
    source = "def train():\n    return 1 / 0\n"
    file = "<python-input-7>"
    monkeypatch.setitem(linecache.cache, file, (len(source), None, source.splitlines(True), file))
    scope = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), scope)
    call = pickle_function(scope["train"], (), {})
    assert call.sources[file] == tuple(source.splitlines(True))
    function, _, _ = pickle.loads(call.pickled)
    assert function is not scope["train"]
    assert function.__code__.co_filename == file
    assert inspect.getsource(function) == source


def test_the_environment_of_the_launcher_is_not_the_kernels():
    kernel = {"MPLBACKEND": "module://matplotlib_inline", "COLUMNS": "20", "A": "1"}
    environment = launcher_environment(kernel)
    assert environment["MPLBACKEND"] == "Agg"
    assert "COLUMNS" not in environment
    assert environment["A"] == "1"
    assert LAUNCHER_VARIABLE in environment


def failed(traceback, tmp_path, exit_code=1):
    record = FailureRecord(
        rank=1, type="ValueError", message="bad", traceback=traceback, time=0.0, monotonic=0.0
    )
    ending = WorkerExit(rank=1, exit_code=1, at=0.0, failure=record)
    result = RunResult(
        exit_code=exit_code, run_dir=tmp_path, report="Worker 1\nrest", endings=(ending,)
    )
    with pytest.raises(RunFailedError) as raised:
        raise_failure(result)
    return raised.value


def test_a_failure_names_the_last_line_of_the_users_code(tmp_path):
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "Cell In[3]", line 7, in train\n    helper()\n'
        '  File "/project/helpers.py", line 9, in helper\n    np.add("")\n'
        f'  File "{io.__file__}", line 1, in x\n'
        '  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 2, in add\n'
        "ValueError: bad\n"
    )
    error = failed(traceback, tmp_path)
    assert (error.rank, error.type, error.exit_code) == (1, "ValueError", 1)
    assert (error.file, error.line) == ("/project/helpers.py", 9)
    assert error.traceback == traceback
    assert str(error).splitlines() == ["Worker 1", "  /project/helpers.py, line 9", "rest"]
    assert error._render_traceback_() == [f"RunFailedError: {error}"]


def test_a_saved_run_says_how_to_continue(tmp_path):
    error = failed("", tmp_path, exit_code=75)
    assert f"name={tmp_path.name!r}" in str(error)


def test_the_line_of_the_magic():
    command = read_line("--workers 2 --max-restarts 1 -- --epochs 3 --workers 9")
    assert (command.workers, command.max_restarts) == ("2", 1)
    assert command.arguments == ["--epochs", "3", "--workers", "9"]
    assert read_line("").workers is None


@pytest.mark.parametrize(
    "line", ["--wrkers 2", "train.py", "-m train", "--hosts a,b", '--name "a', "--seed x"]
)
def test_a_wrong_line_of_the_magic(line):
    with pytest.raises(ConfigurationError, match="%%phalanx"):
        read_line(line)
