"""`phalanx run --strategy horovod` on several hosts that have names."""

import numpy as np
import pytest
from hosts import hosts_up, why_not
from launchers import Launchers
from small_training import weights

pytestmark = [pytest.mark.horovod, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def named_hosts():
    """Two hosts, node0 and node1."""
    if reason := why_not():
        pytest.skip(reason)
    with hosts_up(2, named=True) as made:
        yield made


@pytest.fixture
def trained(named_hosts, tmp_path):
    """Trains on both hosts by a strategy; the weights."""

    def train(strategy):
        run = Launchers(named_hosts, tmp_path / strategy, "--strategy", strategy)
        try:
            assert run.end() == [0, 0], run.reported()
        finally:
            run.kill()
        assert f"2 workers on 2 hosts, strategy {strategy}" in run.output(0)
        return weights(run.directory)

    return train


@pytest.mark.full
def test_horovod_on_two_hosts_trains_as_multiworker_does(trained):
    for got, expected in zip(trained("horovod"), trained("multiworker"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
