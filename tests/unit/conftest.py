"""What is in this folder neither starts a process nor trains, unless it is marked `process`."""

import platform
import sys

import pytest

platform.processor()  # starts `uname` once; what a test imports later finds the answer

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
_guarded = False


def _refuse(event, arguments):
    if _guarded and event in _STARTS:
        raise AssertionError(f"{event}{arguments[:1]} in tests/unit: mark the test `process`")


sys.addaudithook(_refuse)


def _refuse_to_train(*_, **__):
    raise AssertionError("fit in tests/unit: mark the test `process`")


@pytest.fixture(autouse=True)
def only_units(request, monkeypatch):
    """Keep `make test-fast` fast."""
    global _guarded
    _guarded = request.node.get_closest_marker("process") is None
    if _guarded and "keras" in sys.modules:
        monkeypatch.setattr(sys.modules["keras"].Model, "fit", _refuse_to_train)
    yield
    _guarded = False
