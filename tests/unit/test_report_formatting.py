"""Quantities in words; and a page is made of records whose numbers are beyond belief."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phalanx.monitoring.event_log import records_path
from phalanx.monitoring.events import EVENT_TYPES
from phalanx.report import formatting
from phalanx.report.compare import compare_page
from phalanx.report.html import figure_json
from phalanx.report.run_data import load_run
from phalanx.report.run_page import report_page

FIGURES = {
    None: "-", 0.07123456: "0.07123", 12345.6: "12,346", 1e-7: "1.000e-07", 0.0: "0",
    -0.5: "-0.5", 3e12: "3.000e+12", float("nan"): "nan", float("-inf"): "-inf",
}  # fmt: skip
SIZES = {
    None: "-", 0: "0 B", 999: "999 B", 1000: "1 kB", 812_345_678: "812 MB", 1.4e9: "1.4 GB",
    5e13: "50 TB", float("inf"): "-",
}  # fmt: skip
SPANS = {
    None: "-", 0.0123: "12.3 ms", 0.9994: "999 ms", 1.0: "1 s", 12.3: "12 s", 59.6: "1 min 0 s",
    185: "3 min 5 s", 7800: "2 h 10 min", 3e5: "3.5 days", float("nan"): "-",
}  # fmt: skip


@pytest.mark.parametrize(
    ("say", "output"),
    [
        (formatting.format_number, FIGURES),
        (formatting.format_bytes, SIZES),
        (formatting.format_duration, SPANS),
    ],
)
def test_quantities(say, output):
    assert {value: say(value) for value in output} == output


def test_differences_have_a_sign():
    assert formatting.difference(0.5, 0.25) == "+0.25"
    assert formatting.difference(0.25, 0.5) == "-0.25"
    assert formatting.difference(0.5, 0.5) == "0"
    assert formatting.difference(None, 0.5) == formatting.difference(0.5, None) == "-"
    assert formatting.difference(float("nan"), 0.5) == "nan"


def test_a_moment_that_no_calendar_has():
    assert formatting.format_time(1.79e9).startswith("2026-09-2")
    assert formatting.format_time(253402300800.0) == "253402300800 s since the epoch"
    assert formatting.format_time(1e300).endswith("s since the epoch")


NUMBER = st.one_of(
    st.integers(-3, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["nan", "inf", "-inf"]),
)
NUMBERS = (
    "step", "epoch", "rank", "attempt", "fit", "learning_rate", "seconds", "steps", "samples",
    "samples_per_second", "memory_bytes", "bytes", "factor", "since_step", "code",
    "phase_seconds", "workers", "exit_code",
)  # fmt: skip
BY_NAME = {
    "logs": ["loss", "val_loss", "", "val_"],
    "time_fractions": ["input", "compute", "x"],
    "step_seconds": ["p50", "p95"],
    "values": ["gradients/norm", "gradient_norm/x"],
}
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NUMBERS, NUMBER),
        **{name: st.dictionaries(st.sampled_from(keys), NUMBER) for name, keys in BY_NAME.items()},
        "run": st.sampled_from(["global", "worker-0", ""]),
        "resolved": st.booleans(),
        "ok": st.booleans(),
    },
)
RECORDS = st.lists(
    st.tuples(st.sampled_from(sorted(EVENT_TYPES)), FIELDS, st.floats(-1e12, 1e12)), max_size=12
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(lines=RECORDS)
@example(lines=[("attempt_start", {}, 253402300800.0)])
def test_a_page_is_made_of_whatever_numbers(tmp_path, lines):
    shutil.rmtree(tmp_path / "records", ignore_errors=True)
    path = records_path(tmp_path, 0)
    path.parent.mkdir()
    records = ({**fields, "v": 1, "t": t, "kind": kind} for kind, fields, t in lines)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = load_run(tmp_path)
    for page in (report_page(data, now=2.0), compare_page([data, data], now=2.0)):
        for section in page.sections:
            for figure in section.figures:
                json.loads(figure_json(figure))
