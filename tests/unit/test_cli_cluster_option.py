"""The node rank beside `--hosts`."""

from __future__ import annotations

import pytest

from phalanx.cli.cluster_option import resolve_cluster


@pytest.mark.parametrize(("option", "index"), [(None, 1), (0, 0)])
def test_the_environment_gives_the_node_rank_where_the_option_does_not(monkeypatch, option, index):
    monkeypatch.setenv("PHALANX_NODE_RANK", "1")
    assert resolve_cluster("one.invalid,two.invalid", option, "auto").index == index
