"""The assignments that Horovod gets of its processes, without Horovod."""

import socket

import pytest

from phalanx.cluster.spec import WorkerSpec
from phalanx.errors import ClusterError, ConfigurationError
from phalanx.horovod import library
from phalanx.horovod.gloo_rendezvous import assert_reachable, host_assignments, variables, wait_for

TWO_HOSTS = ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1")


def test_ranks_on_their_hosts_and_across_them():
    places = host_assignments(TWO_HOSTS)
    local = [(p["local_rank"], p["local_size"]) for p in places]
    cross = [(p["cross_rank"], p["cross_size"]) for p in places]
    assert local == [(0, 2), (1, 2), (0, 1)]
    assert cross == [(0, 2), (0, 1), (1, 2)]
    assert [(p["rank"], p["size"]) for p in places] == [(0, 3), (1, 3), (2, 3)]


def test_a_later_host_may_have_more_workers():
    places = host_assignments(("10.0.0.2:1", "10.0.0.1:1", "10.0.0.1:2"))
    assert [(p["cross_rank"], p["cross_size"]) for p in places] == [(0, 2), (1, 2), (0, 1)]


def test_the_environment_of_a_process():
    spec = WorkerSpec(rank=2, world_size=3, addresses=TWO_HOSTS, strategy="horovod")
    interfaces = {"lo": ["127.0.0.1"], "eth0": ["fe80::1", "10.0.0.2"]}
    found = variables(spec, host_assignments(TWO_HOSTS)[2], interfaces)
    assert (found["HOROVOD_GLOO_RENDEZVOUS_ADDR"], found["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == (
        "10.0.0.1",
        "1",
    )
    assert (found["HOROVOD_RANK"], found["HOROVOD_CROSS_RANK"]) == ("2", "1")
    assert found["HOROVOD_GLOO_IFACE"] == "eth0"
    assert "HOROVOD_GLOO_IFACE" not in variables(spec, host_assignments(TWO_HOSTS)[2], {})


@pytest.mark.parametrize("found", ["127.0.1.1", "10.0.0.9", OSError("unknown")])
def test_a_host_that_others_cannot_reach_by_its_name(found):
    def resolve(name):
        assert name == "node1"
        if isinstance(found, OSError):
            raise found
        return found

    with pytest.raises(ClusterError, match=f"for node1, this host, the address .*{found}"):
        assert_reachable("node1", ["127.0.0.1", "10.0.0.1"], known_as="10.0.0.1", resolve=resolve)
    assert_reachable("node1", ["127.0.0.1"], known_as="127.0.0.2", resolve=resolve)
    assert_reachable("node1", ["10.0.0.1"], known_as="a", resolve=lambda name: "10.0.0.1")


def test_waiting_for_worker_0():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        wait_for(address, clock=lambda: 0.0, sleep=pytest.fail)
    times = iter([0.0, 1.0, 200.0])
    slept = []
    with pytest.raises(ClusterError, match=f"does not answer at {address} after 120 s"):
        wait_for(address, clock=lambda: next(times), sleep=slept.append)
    assert len(slept) == 1


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(library, "is_installed", lambda: False)
    with pytest.raises(ConfigurationError, match=r"horovod is not installed. Build it"):
        library.load()
    monkeypatch.setattr(library, "is_installed", lambda: True)

    def broken(name):
        raise ImportError("undefined symbol: _ZN10tensorflow")

    monkeypatch.setattr(library.importlib, "import_module", broken)
    with pytest.raises(ConfigurationError, match=r"does not load \(ImportError: undefined symbol"):
        library.load()
