"""Which option would shorten a step: against what was measured, and what reports say of it."""

from dataclasses import replace

import pytest

from made_run import make_run
from phalanx.diagnostics.doctor.all_reduce import Speed
from phalanx.diagnostics.doctor.cluster_check.findings import communication as finding
from phalanx.monitoring.communication_advice import StepCosts, advise, of_a_link, predicted_step
from phalanx.monitoring.event_log import RecordWriter, records_path
from phalanx.report.communication import communication, step_costs
from phalanx.report.communication_section import communication_line, communication_section
from phalanx.report.run_data import load_run

MB = 1_000_000
FAST = StepCosts(compute=0.364, communication=0.442, bytes=40 * MB)  # 1 Gbit/s
SLOW = StepCosts(compute=1.728, communication=1.837, bytes=40 * MB)  # 200 Mbit/s
MEASURED = [
    (FAST, 1, 1, 0.780), (FAST, 2, 1, 0.701), (FAST, 4, 1, 0.621), (FAST, 8, 1, 0.587),
    (SLOW, 1, 1, 3.529), (SLOW, 2, 1, 3.022), (SLOW, 4, 1, 2.744), (SLOW, 8, 1, 2.465),
    (FAST, 1, 2, 0.571), (SLOW, 1, 2, 2.668),
]  # fmt: skip
"""Costs, buckets, by how much the bytes are divided, seconds of a step: a prototype's medians."""


@pytest.mark.parametrize(("costs", "buckets", "divided", "seconds"), MEASURED)
def test_predictions_are_near_what_was_measured(costs, buckets, divided, seconds):
    predicted = predicted_step(costs, buckets=buckets, transfer=costs.transfer / divided)
    assert predicted == pytest.approx(seconds, rel=0.06)


def options(costs):
    return {advice.options: advice for advice in advise(costs)}


def test_every_option_for_a_step_that_computes_as_long_as_it_sends():
    found = options(StepCosts(compute=0.3, communication=0.3, bytes=40 * MB))
    assert list(found) == [
        "--reduce-dtype bfloat16 --bucket-mb 2.5",
        "--bucket-mb 5",
        "--reduce-dtype bfloat16",
        "--sync-every 50 --outer-optimizer nesterov",
    ]
    assert found["--bucket-mb 5"].step == pytest.approx(0.1 + 0.2 / 8 + 0.3)
    assert found["--bucket-mb 5"].gain == pytest.approx(1 - 0.425 / 0.6)
    assert found["--reduce-dtype bfloat16"].step == pytest.approx(0.45)
    assert found["--sync-every 50 --outer-optimizer nesterov"].step == pytest.approx(0.303)
    assert [each.is_exact for each in found.values()] == [True, True, True, False]


def test_what_no_option_changes_stays_in_the_step():
    alone = options(StepCosts(compute=0.3, communication=0.3, bytes=40 * MB))
    beside = options(StepCosts(compute=0.3, communication=0.3, other=1.0, bytes=40 * MB))
    assert alone.keys() == beside.keys()
    for name, advice in beside.items():
        assert advice.step == pytest.approx(alone[name].step + 1.0)


def test_no_option_for_a_step_that_does_not_wait():
    assert advise(StepCosts(compute=0.3, communication=0.002, bytes=40 * MB)) == []
    assert advise(StepCosts(compute=0.0, communication=0.0)) == []


def test_a_small_model_is_sent_in_one_piece():
    """There it is the number of collectives that costs."""
    found = options(StepCosts(compute=0.002, communication=0.003, bytes=400_000))
    assert list(found) == ["--sync-every 50 --outer-optimizer nesterov"]


def test_latency_limits_the_number_of_buckets():
    costs = StepCosts(compute=0.02, communication=0.06, bytes=40 * MB)
    assert "--bucket-mb 5" in options(costs)
    assert "--bucket-mb 20" in options(replace(costs, latency=0.004))
    assert not any("bucket" in each for each in options(replace(costs, latency=0.02)))


@pytest.mark.parametrize("buckets", [1, 2, 4, 8])
@pytest.mark.parametrize("compute", [0.1, 0.3, 0.9])
def test_options_in_use_are_not_advised_and_their_effect_is_known(buckets, compute):
    whole = StepCosts(compute=compute, communication=0.3, bytes=40 * MB)
    step = predicted_step(whole, buckets=buckets, transfer=0.3)
    used = replace(whole, communication=step - compute, buckets=buckets)
    assert used.transfer == pytest.approx(0.3)
    if buckets == 8:
        assert not any(each.startswith("--bucket-mb") for each in options(used))
    assert not any("bfloat16" in each for each in options(replace(used, dtype="bfloat16")))


def test_a_ring_of_more_workers_sends_more_over_each_link():
    costs = StepCosts(compute=1.0, communication=9.0)
    two = of_a_link(costs, seconds=0.001, rate=1e8, size=100 * MB, workers=2)
    eight = of_a_link(costs, seconds=0.001, rate=1e8, size=100 * MB, workers=8)
    assert two.transfer == pytest.approx(1.001)
    assert eight.transfer == pytest.approx(1.751)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("runs"), "made"))


def test_the_communication_of_a_run(made):
    found = communication(made)
    assert (found.plan.bytes, len(found.plan.buckets)) == (37_328_800, 1)
    assert found.costs.step == pytest.approx(0.21, rel=0.01)
    # While worker 2 waits for its input, it needs less for the transfer than the others.
    assert 0 < found.waiting < 0.01
    assert found.share == pytest.approx(
        (found.costs.communication + found.waiting) / found.costs.step
    )
    assert [each.options for each in found.advice][:2] == [
        "--reduce-dtype bfloat16 --bucket-mb 2.4",
        "--bucket-mb 4.7",
    ]
    assert found.shares_cores  # three workers with CPU:0 of one host
    section = communication_section(found)
    assert "Measure before" in section.tables[0].rows[-1][1]
    assert [row[0] for row in section.tables[1].rows] == [each.options for each in found.advice]
    assert communication_line(found) == "communication 25% of a step, 37.3 MB a step"
    apart = replace(found, shares_cores=False)
    assert communication_line(apart).endswith("--bucket-mb 2.4 would save 22%")
    assert step_costs(made) == found.costs


def record(run, *events, rank=0):
    with RecordWriter(records_path(run, rank), clock=lambda: 5.0) as writer:
        writer.write("worker_start", attempt=0, rank=rank, workers=2)
        for kind, fields in events:
            writer.write(kind, **fields)


SIZES = (("float16", 600), ("float32", 200))
BUCKETS = [{"dtype": dtype, "bytes": size, "tensors": 1} for dtype, size in SIZES]
PLAN = (
    "reduction_plan",
    {
        "replicas": 2,
        "reduce_dtype": "float16",
        "bytes": 800,
        "buckets": BUCKETS,
        "sparse": [{"variable": "embedding", "travels": "rows"}],
    },
)


def window(communication, **fields):
    rest = (1 - (communication or 0)) / 2
    fractions = {"communication": communication, "compute": rest, "input": rest}
    fields = {"step": 10, "steps": 10, "seconds": 2.0, "time_fractions": fractions, **fields}
    return "throughput", fields


def test_a_run_that_did_not_measure_it_still_knows_its_bytes(tmp_path):
    record(tmp_path, PLAN, window(None))
    record(tmp_path, window(None), rank=1)
    found = communication(load_run(tmp_path))
    assert (found.share, found.costs, found.advice) == (None, None, ())
    rows = dict(communication_section(found).tables[0].rows)
    assert rows["gradients that one worker adds up in a step"].startswith("800 B of float16, 2 b")
    assert rows["share of a step"].startswith("not measured")
    assert communication_line(found) == ""


def test_the_wait_for_a_slower_worker_is_no_transfer(tmp_path):
    record(tmp_path, window(0.5))
    record(tmp_path, window(0.1), rank=1)
    found = communication(load_run(tmp_path))
    assert found.costs.communication == pytest.approx(0.1 * 0.2)
    assert found.waiting == pytest.approx((0.5 - 0.1) / 2 * 0.2)
    assert found.share == pytest.approx(0.3)


def test_one_worker_sends_nothing(tmp_path):
    record(tmp_path, window(0.0))
    data = load_run(tmp_path)
    assert communication(data) is None
    assert communication_section(None).is_empty


def test_the_step_of_a_run_with_one_worker_serves_the_doctor(tmp_path):
    with RecordWriter(records_path(tmp_path, 0), clock=lambda: 5.0) as writer:
        writer.write("worker_start", attempt=0, rank=0, workers=1)
        writer.write("fit_start", fit=0, parameters=1000)
        writer.write("throughput", **window(0.0)[1])
    costs = step_costs(load_run(tmp_path))
    assert (costs.compute, costs.bytes) == (pytest.approx(0.2), 4000)


def test_the_doctor_advises_by_the_slowest_link():
    speed = Speed(seconds=0.001, rate=1e8)
    result, advice = finding(speed, 10 * MB, 2, StepCosts(compute=0.4, communication=0.0))
    assert result.verdict == "ok"
    assert "40 MB of gradients take 401 ms" in result.what
    assert "a step takes 801 ms" in result.what
    assert advice[0].options == "--reduce-dtype bfloat16 --bucket-mb 2.5"
    assert advice[0].options in result.fix
    like, _ = finding(speed, 10 * MB, 2, None)
    assert "a step takes 802 ms" in like.what
    quiet, none = finding(Speed(seconds=0.0001, rate=1e11), 10 * MB, 2, StepCosts(
        compute=0.4, communication=0.0
    ))  # fmt: skip
    assert (quiet.fix, none) == (None, [])
