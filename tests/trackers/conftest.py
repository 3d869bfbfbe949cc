"""A directory in which runs are started."""

import pytest
from tracked_runs import Runs


@pytest.fixture
def runs(shared_fork_server, tmp_path):
    return Runs(tmp_path, shared_fork_server)
