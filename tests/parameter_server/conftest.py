"""The real command, as in tests/command."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "command_of_whole_runs", Path(__file__).parents[1] / "command" / "conftest.py"
)
_HOME = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_HOME)


@pytest.fixture
def command(tmp_path, shared_fork_server):
    """`phalanx run` in a directory of this test's."""
    return _HOME.Command(tmp_path, shared_fork_server)
