"""`phalanx doctor --cluster` without processes: doctors in threads, links on loopback."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import AuthenticationError

import pytest

from phalanx.cluster.node_group import ClusterEnvironment
from phalanx.diagnostics.doctor.all_reduce import AllReduceResult, Speed, needs, parse_parameters
from phalanx.diagnostics.doctor.cluster_check import findings
from phalanx.diagnostics.doctor.cluster_check.coordinator import ClusterCheck
from phalanx.diagnostics.doctor.cluster_check.findings import HostName, resolve_names
from phalanx.diagnostics.doctor.cluster_check.follower import UnreachableMarker
from phalanx.diagnostics.doctor.cluster_check.network_links import (
    Link,
    LinkMeasurement,
    LinkProbe,
    judge,
    measure,
    rounds,
)
from phalanx.diagnostics.doctor.result import ok, warning
from phalanx.errors import ConfigurationError, LaunchError
from phalanx.launcher.rendezvous.store import RendezvousInfo

NAMES = ("a", "b", "c")
WELL = LinkMeasurement(seconds=0.0001, longest=0.0002, rate=1e9)


def links(**others):
    """All directions between three hosts; those of `others`, such as `ab`, are otherwise."""
    found = []
    for of, to in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]:
        measured = others.get(NAMES[of] + NAMES[to], WELL)
        problem = measured if isinstance(measured, str) else None
        whole = None if problem else measured
        found.append(Link(of=of, to=to, measured=whole, problem=problem))
    return found


def bad(found):
    return [(result.verdict, result.what) for result in found if result.verdict != "ok"]


@pytest.mark.parametrize("count", range(2, 9))
def test_all_pairs_are_measured_and_no_host_twice_at_a_time(count):
    made = list(rounds(count))
    pairs = [pair for one in made for pair in one]
    assert len(set(pairs)) == len(pairs) == count * (count - 1) // 2
    for one in made:
        hosts = [host for pair in one for host in pair]
        assert len(set(hosts)) == len(hosts)


def test_links_that_are_all_good():
    (result,) = judge(links(), NAMES)
    assert result.verdict == "ok"
    assert result.what.startswith("3 between 3 hosts are as they should be: usually 0.1 ms")


@pytest.mark.parametrize(
    "slow",
    [
        LinkMeasurement(seconds=0.004, longest=0.005, rate=1e9),
        LinkMeasurement(seconds=0.0001, longest=0.2, rate=1e8),
    ],
)
def test_the_one_slow_link_is_named_with_both_ends(slow):
    found = list(judge(links(bc=slow), NAMES))
    ((verdict, what),) = bad(found)
    assert verdict == "warning"
    assert what.startswith("slow: b (1) and c (2): ")
    assert "usual here are 0.1 ms and 1 GB/s" in what
    assert found[0].fix.startswith("on b: iperf3 -c c")
    assert found[-1].what.startswith("2 of 3 between 3 hosts")


def test_the_one_broken_link_is_named_with_both_ends():
    (whole,) = bad(judge(links(ac="timed out", ca="timed out"), NAMES))
    assert whole == ("error", "broken: a (0) and c (2) do not reach each other: timed out")
    (half,) = bad(judge(links(cb="refused"), NAMES))
    assert half == ("error", "broken: c (2) does not reach b (1): refused")


def test_a_slow_link_of_two_hosts_is_found_without_others():
    slow = LinkMeasurement(seconds=0.05, longest=0.05, rate=1e9)
    ((verdict, what),) = bad(judge([Link(of=0, to=1, measured=slow)], NAMES[:2]))
    assert verdict == "warning"
    assert "a (0) and b (1): 50 ms round trip" in what


def test_other_work_on_a_host_makes_no_link_slow():
    busy = LinkMeasurement(seconds=0.0015, longest=0.02, rate=3e8)
    assert bad(judge(links(bc=busy), NAMES)) == []


def test_versions_that_differ_are_named():
    first = {"python": "3.11", "keras": "3.15", "numpy": "2"}
    assert bad(findings.versions({"a": first, "b": first})) == []
    there = {"python": "3.11", "keras": "3.12", "tf-keras": "2"}
    found = list(findings.versions({"a": first, "b": there}))
    assert [result.fix for result in found] == [
        "on b: pip install keras==3.15",
        "on b: pip install numpy==2",
        "on a, or uninstall it on b: pip install tf-keras",
    ]


def test_a_clock_that_is_ahead():
    assert bad(findings.clocks({"b": 0.2, "c": -0.1}, 0.01)) == []
    ((verdict, what),) = bad(findings.clocks({"b": -7.0, "c": 0.0}, 0.01))
    assert verdict == "warning"
    assert what.startswith("b is 7.0 s behind the first host")


@pytest.mark.parametrize(
    ("known", "verdict", "says"),
    [
        (HostName(name="b", address="10.0.0.2", back="b"), None, ""),
        (HostName(name="b", address="127.0.1.1", back="b", own=True), None, ""),
        (HostName(name="b", problem="not known"), "error", "a does not know b: not known"),
        (HostName(name="b", address="127.0.1.1", back="b"), "error", "which is a itself"),
        (HostName(name="b", address="10.0.0.2"), "warning", "no name for that address"),
    ],
)
def test_names_and_their_reverse_lookup(known, verdict, says):
    (result,) = findings.names({"a": [known]})
    assert result.verdict == (verdict or "ok")
    assert says in result.what


def test_only_names_are_resolved_and_not_addresses():
    own, nowhere = resolve_names(["localhost", "10.0.0.1", "", "nowhere.invalid"], 0)
    assert own.own
    assert own.address in ("127.0.0.1", "::1")
    assert nowhere.address is None
    assert HostName.from_fields(nowhere.to_fields()) == nowhere


def test_a_directory_that_is_not_shared():
    assert bad(findings.directory("/runs", {"b": None})) == []
    ((verdict, what),) = bad(findings.directory("/runs", {"b": None, "c": "no such file"}))
    assert (verdict, what) == ("error", "/runs on c: no such file")


def test_the_cost_of_an_all_reduce_for_a_model():
    speed = Speed(seconds=0.001, rate=1e9)
    assert speed.of_a_step(250_000) == pytest.approx(0.002)
    assert speed.of_a_step(250_000, 4) == pytest.approx(0.0025)
    output = needs(speed, 25_600_000, 4)
    assert output == (
        "25.6 million parameters (102 MB of gradients) take 155 ms of each step on 4 workers"
    )
    assert [parse_parameters(text) for text in ("1000", "25.6M", "7B")] == [
        1000,
        25_600_000,
        7_000_000_000,
    ]
    with pytest.raises(ConfigurationError, match="found 'many'"):
        parse_parameters("many")


def test_a_probe_needs_the_token():
    probe = LinkProbe(b"right key")
    there = RendezvousInfo(host="127.0.0.1", port=probe.port, token=b"right key".hex())
    found = measure(there)
    assert 0 < found.seconds <= found.longest
    assert found.rate > 0
    with pytest.raises(AuthenticationError):
        measure(replace(there, token=b"wrong key".hex()))
    probe.close()


class FakeAllReduceWorker:
    """A fake of an all-reduce worker."""

    def __init__(self, index, addresses):
        self.index = index

    def result(self):
        return AllReduceResult(speed=Speed(seconds=0.001, rate=1e9))

    def kill(self):
        pass


def doctors(root, index, hosts=("127.0.0.1", "127.0.0.2"), **options):
    node_group = ClusterEnvironment(hosts=hosts, index=index, kind="hosts", why="a test")
    found = [ok("memory", "enough"), warning("Horovod", f"not built on {index}")]
    options = {"rendezvous_timeout": 60.0, "start": FakeAllReduceWorker, **options}
    return ClusterCheck(
        node_group=node_group, root=root, check=lambda: found, announce=lambda text: None, **options
    )


def test_a_leader_and_a_follower_check_the_cluster(tmp_path):
    results = []
    with ThreadPoolExecutor() as threads:
        follower = threads.submit(doctors(tmp_path, 1).follow)
        found = doctors(tmp_path, 0).lead(results.append)
        assert follower.result(timeout=60) == 0
    assert {(link.of, link.to) for link in found.links} == {(0, 1), (1, 0)}
    assert all(link.problem is None for link in found.links)
    # 102.4 MB at 1 GB/s, and as long for computing: 8 buckets of 12.8 MB hide up to two thirds.
    assert found.advice[0].options == "--reduce-dtype bfloat16 --bucket-mb 6.4"
    assert found.advice[0].is_exact
    reported = [result for result in results if result.host is not None]
    assert [result.host for result in reported if result.verdict == "warning"] == [
        "127.0.0.1 (0)",
        "127.0.0.2 (1)",
    ]
    together = [result.check for result in results if result.host is None]
    requested = ["versions", "clock", "names", "shared directory", "link", "all-reduce"]
    requested.append("communication")
    assert [check for check in together if check in requested][: len(requested)] == requested
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_reach_the_leader_is_found_by_its_marker(tmp_path):
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    results = []
    with ThreadPoolExecutor() as threads:
        follower = threads.submit(doctors(tmp_path, 1, hosts).follow)
        leader = threads.submit(doctors(tmp_path, 0, hosts).lead, results.append)
        info = rendezvous_in(tmp_path)
        third = LinkProbe(info.key)
        marker = UnreachableMarker(
            index=2, host="c", port=third.port, why="timed out", to=info.port
        )
        marker.write(tmp_path, info)
        found = leader.result(timeout=60)
        assert follower.result(timeout=60) == 1
        third.close()
    measured = {(link.of, link.to) for link in found.links if link.measured is not None}
    assert measured == {(0, 1), (1, 0), (0, 2), (1, 2)}
    broken = [result.what for result in results if result.verdict == "error"]
    assert broken == ["broken: 127.0.0.3 (2) does not reach 127.0.0.1 (0): timed out"]
    assert sum(result.check == "all-reduce" for result in results) == 1
    assert list(tmp_path.iterdir()) == []


def rendezvous_in(directory):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for path in directory.glob(".rendezvous-*.json"):
            if (info := RendezvousInfo.read(path)) is not None:
                return info
        time.sleep(0.01)
    raise AssertionError("no one leads")


def test_a_follower_without_a_leader_times_out(tmp_path):
    with pytest.raises(LaunchError, match="Waited"):
        doctors(tmp_path, 1, rendezvous_timeout=0.1).follow()
