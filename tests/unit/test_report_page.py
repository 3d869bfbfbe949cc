"""The page about a run, and about two: what it says, draws, and keeps from harm."""

import html
import json
import re
from html.parser import HTMLParser

import pytest

from made_run import BEGAN, make_run
from phalanx.monitoring.event_log import RecordWriter, launcher_records_path, records_path
from phalanx.report.compare import compare_page, distinct_names
from phalanx.report.figure_style import Figure
from phalanx.report.html import figure_json, render, side_by_side
from phalanx.report.run_data import load_run
from phalanx.report.run_json import to_json
from phalanx.report.run_page import report_page
from phalanx.report.summary import summarize
from phalanx.report.workers import summarize_workers

NOW = BEGAN + 1000.0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("runs"), "made"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    second = make_run(root, "second", workers=2, epochs=3, seed=1, restart=False)
    return [load_run(make_run(root, "first")), load_run(second)]


def write(run, *records, rank=0):
    """Records, one a second, `(kind, fields)` each."""
    now = iter(range(100, 1000))
    with RecordWriter(records_path(run, rank), clock=lambda: float(next(now))) as writer:
        for kind, fields in records:
            writer.write(kind, **fields)
    return load_run(run)


def figures(page):
    return {figure.key: figure for section in page.sections for figure in section.figures}


def cell(page, table, row, column):
    (found,) = [t for s in page.sections for t in s.tables if t.title.startswith(table)]
    (line,) = [r for r in found.rows if r[0] == row]
    return line[list(found.columns).index(column)]


def test_the_summary_of_the_made_run(made):
    summary = summarize(made)
    assert (summary.state, summary.exit_code, summary.attempts) == ("ended well", 0, 2)
    assert (summary.workers, summary.replicas, summary.steps, summary.epochs) == (3, 3, 240, 4)
    assert summary.restarts == ("MemoryError: cannot hold another batch",)
    assert summary.stragglers == (2,)
    assert sum(summary.time_fractions.values()) == pytest.approx(1.0)
    assert summary.time_fractions["communication"] > 0.15
    assert summary.checkpoints == 4
    assert summary.noise_scale == 440.0
    last = {metric.name: metric.last for metric in summary.metrics}
    assert set(last) == {"loss", "accuracy", "val_loss", "val_accuracy"}


def test_the_steps_are_those_of_the_last_attempt(tmp_path):
    data = write(
        tmp_path,
        ("worker_start", {"attempt": 0}),
        ("train_metrics", {"step": 30, "logs": {"loss": 1.0}}),
        ("heartbeat", {"step": 35}),
        ("worker_start", {"attempt": 1}),
        ("train_metrics", {"step": 21, "logs": {"loss": 1.0}}),
        ("heartbeat", {"step": None}),
        ("heartbeat", {"step": 24}),
    )
    assert summarize(data).steps == 24


def test_the_goodput_of_the_made_run(made):
    found = made.goodput
    assert sum(found.rows.values()) == pytest.approx(made.last - made.began)
    assert found.rows["repeated"] == pytest.approx(20 * 0.2, rel=0.1)  # steps 121 to 140
    assert found.rows["starting"] == pytest.approx(2 * 3.5 + 2.0)
    assert found.rows["saving"] == pytest.approx(0.4, rel=0.01)
    (section,) = [s for s in report_page(made, NOW).sections if s.title.startswith("Goodput")]
    assert section.title == f"Goodput {found.goodput:.0%}"
    bars = {trace.name: trace.x[0] for trace in section.figures[0].plot.data}
    assert bars["starting"] == found.rows["starting"]
    assert len(section.tables[0].rows) == len(bars) + 1


def test_the_workers_side_by_side(made):
    workers = summarize_workers(made)
    assert [worker.rank for worker in workers] == [0, 1, 2]
    assert [worker.straggled for worker in workers] == [0, 0, 1]
    assert {worker.ending for worker in workers} == {"ended well"}
    assert workers[2].time_fractions["input"] > workers[0].time_fractions["input"]
    assert workers[2].memory_bytes > workers[0].memory_bytes


def test_every_figure_of_a_full_run_is_there(made):
    found = figures(report_page(made, NOW))
    assert list(found) == [
        "metric-loss", "metric-accuracy", "learning-rate",
        "gradients-2f-norm", "gradients-2f-clipped-5f-norm", "gradients-2f-clip-5f-fraction",
        "gradients-2f-cosine-5f-similarity", "gradients-2f-noise-5f-scale", "variables", "goodput",
        "throughput", "step-seconds", "split", "workers", "memory", "timeline",
    ]  # fmt: skip
    assert [trace.name for trace in found["metric-loss"].plot.data] == [
        "train", "undone by a restart", "train, epoch", "validation",
    ]  # fmt: skip
    for figure in found.values():
        for trace in figure.plot.data:
            assert len(trace.x) == len(trace.y)
            if figure.has_steps:
                assert len(trace.customdata) == len(trace.x)


@pytest.mark.parametrize(
    ("given", "laid_out"),
    [("", ""), ("n", "w"), ("nn", "nn"), ("nnn", "nnw"), ("nwn", "www"), ("nnwnn", "nnwnn"),
     ("wnnn", "wnnw")],
)  # fmt: skip
def test_no_figure_leaves_half_a_row_empty(given, laid_out):
    figures = [Figure(key="x", title="", plot=None, wide=each == "w") for each in given]
    assert "".join("nw"[figure.wide] for figure in side_by_side(figures)) == laid_out


def test_the_time_line_has_workers_restart_and_checkpoints(made):
    plot = figures(report_page(made, NOW))["timeline"].plot
    traces = {trace.name: trace for trace in plot.data}
    assert list(traces["failed"].y) == ["worker 1"]
    assert list(traces["stopped by the launcher"].y) == ["worker 0", "worker 2"]
    assert list(traces["held up the others"].y) == ["worker 2"]
    assert len(traces["checkpoints"].x) == 4
    (restart,) = traces["restarts"].x
    assert restart == pytest.approx(traces["failed"].base[0] + traces["failed"].x[0])


def test_nothing_is_missing_in_a_full_run(made):
    page = report_page(made, NOW)
    assert (page.damages, page.gaps) == ([], [])


def test_the_page_is_one_and_loads_nothing(made):
    text = render(report_page(made, NOW))
    own = text[: text.index("<script>")]
    assert "default-src 'none'" in own
    assert not re.search(r"(?:src|href)\s*=", own)
    assert text.count('<script type="application/json"') == 16
    assert own.count('class="plot"') == 16


EVIL = "</script><img src=x onerror=alert(1)><b>&amp;'\"{{7*7}}\u2028"


def test_whatever_the_run_calls_things_is_shown_as_text(tmp_path):
    run = tmp_path / EVIL.replace("/", "|")
    data = write(
        run,
        ("worker_start", {"attempt": 0, "host": EVIL, "devices": [EVIL], "versions": {EVIL: EVIL}}),
        ("fit_start", {"fit": 0, "model": EVIL, "optimizer": EVIL}),
        ("train_metrics", {"step": 1, "logs": {EVIL: 1.0}}),
        ("epoch_metrics", {"step": 2, "epoch": 0, "logs": {EVIL: 1.0, f"val_{EVIL}": 1.0}}),
        ("gradients", {"run": EVIL, "step": 2, "values": {f"gradient_norm/{EVIL}": 1.0}}),
        ("gradients", {"run": "global", "step": 2, "values": {f"gradient_norm/{EVIL}": 1.0}}),
        ("checkpoint", {"step": 2, "path": EVIL}),
        ("straggler", {"step": 2, "rank": 0, "factor": 2.0, "cause": EVIL, "resolved": False}),
        ("early_stop", {"step": 2, "reason": EVIL}),
        ("worker_end", {"ok": False, "error": EVIL}),
    )
    with RecordWriter(launcher_records_path(run), clock=lambda: 200.0) as launcher:
        launcher.write("run_end", exit_code=1, report=EVIL)
    (run / "run.json").write_text(json.dumps({"options": {EVIL: EVIL}, "versions": {EVIL: EVIL}}))
    data = load_run(run)
    for page in (report_page(data, NOW), compare_page([data, data], NOW)):
        text = render(page)
        own = text[: text.index("<script>")]
        assert not elements(own) & {"img", "b", "a"}
        assert {"table", "figure", "script"} <= elements(own)
        for plain in re.findall(r'<script type="application/json"[^>]*>(.*)</script>', own):
            figure = json.loads(plain)
            for words in strings(figure["data"]):
                assert "<img" not in words, "Plotly takes some HTML in texts for markup"
        assert html.escape(EVIL, quote=False).split("'")[0] in own


def elements(text):
    """The names of the elements that a browser would see."""
    found = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.add(tag)
    parser.feed(text)
    return found


class Raw:
    """A plot whose JSON is as it is, whatever its library escapes."""

    def to_json(self):
        return json.dumps({"x": EVIL}, ensure_ascii=False)


def test_no_json_of_a_figure_ends_its_element():
    text = figure_json(Figure(key="x", title="", plot=Raw()))
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"x": EVIL}


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def test_a_run_of_which_nothing_is_known(tmp_path):
    page = report_page(load_run(tmp_path), NOW)
    assert page.damages == ["There is no run.json."]
    assert page.gaps == ["Nothing was recorded: there is no file of records that could be read."]
    assert figures(page) == {}
    assert "Nothing was recorded" in render(page)


def test_what_was_not_recorded_is_said(tmp_path):
    data = write(
        tmp_path,
        ("worker_start", {"attempt": 0, "workers": 2}),
        ("fit_start", {"fit": 0}),
        ("epoch_metrics", {"step": 9, "epoch": 0, "logs": {"loss": 1.0}, "learning_rate": None}),
    )
    page = report_page(data, now=162.0)
    assert page.gaps == [
        "The run has no end yet: it still runs, or its launcher was killed. The last sign of life "
        "came 1 min 0 s before this page was made.",
        "No metrics were read between the ends of epochs.",
        "There was no validation.",
        "No throughput was recorded.",
        "No heartbeats were recorded, so nothing is known of memory.",
        "No gradients were recorded: give fit callbacks=[phalanx.callbacks.GradientLogger()].",
        "No checkpoint was saved.",
        "For some epochs no learning rate was recorded.",
        "1 of 2 workers recorded nothing.",
    ]
    assert list(figures(page)) == ["metric-loss", "timeline"]
    render(page)


def test_a_run_that_continues(tmp_path):
    data = load_run(make_run(tmp_path, ended=False))
    page = report_page(data, NOW)
    assert (page.state, page.tone) == ("not ended", "open")
    assert "no end recorded" in [t.name for t in figures(page)["timeline"].plot.data]


def test_what_could_not_be_read_is_on_the_page(tmp_path):
    run = make_run(tmp_path)
    with (run / "records" / "worker-1.jsonl").open("ab") as file:
        file.write(b'{"v":1,"t":179000')
    page = report_page(load_run(run), NOW)
    assert page.damages == ["worker-1.jsonl: the last line is incomplete."]
    assert page.damages[0] in render(page)


def test_a_loss_that_is_not_finite_is_a_gap_and_is_said(tmp_path):
    losses = [1.0, 0.5, "nan", "inf", "-inf", 0.4]
    data = write(
        tmp_path,
        *(
            ("train_metrics", {"step": n, "logs": {"loss": v}})
            for n, v in enumerate(losses, start=1)
        ),
    )
    figure = figures(report_page(data, NOW))["metric-loss"]
    assert list(figure.plot.data[0].y) == [1.0, 0.5, None, None, None, 0.4]
    assert figure.notes == ("train: not finite at 3 of 6 points, first at step 3.",)
    document = json.loads(to_json([data], NOW))
    assert document["runs"][0]["metrics"][0]["values"] == losses


def test_shares_that_were_not_measured_are_said(tmp_path):
    time_fractions = {"input": 0.25, "compute": 0.75, "communication": None}
    rate = {
        "step": 10,
        "steps": 10,
        "seconds": 2.0,
        "samples": 640,
        "time_fractions": time_fractions,
    }
    page = report_page(write(tmp_path, ("throughput", rate)), NOW)
    assert figures(page)["split"].notes == (
        "Not measured, so not shown: communication, callbacks, checkpoint.",
    )
    assert ("time of the steps", "input 25%, compute 75%") in page.cards
    assert ("samples a second", "320") in page.cards


def test_a_failed_run_shows_its_report(tmp_path):
    run = make_run(tmp_path, ended=False)
    with RecordWriter(launcher_records_path(run), clock=lambda: NOW) as launcher:
        launcher.write("run_end", exit_code=3, report="Worker 1 failed first:\n  <it>")
    page = report_page(load_run(run), NOW)
    assert (page.state, page.tone) == ("failed, exit code 3", "bad")
    assert "Worker 1 failed first:\n  &lt;it&gt;" in render(page)


def test_two_runs_on_one_page(two):
    page = compare_page(two, NOW)
    assert page.title == "first · second"
    found = figures(page)
    assert {"metric-loss", "learning-rate", "gradients-2f-norm", "throughput"} <= set(found)
    names = [trace.name for trace in found["metric-loss"].plot.data]
    assert names == [
        "first: train", "first: train, epoch", "first: validation",
        "second: train", "second: train, epoch", "second: validation",
    ]  # fmt: skip
    assert cell(page, "The runs", "workers", "second") == "2"
    assert cell(page, "Configuration", "workers", "first") == "3"
    first, second = (float(cell(page, "Metrics", "loss", name)) for name in ("first", "second"))
    apart = float(cell(page, "Metrics", "loss", "second - first"))
    assert apart == pytest.approx(second - first, abs=1e-4)
    assert 'class="plot"' in render(page)


def test_runs_of_the_same_name_are_distinguished(two):
    assert distinct_names([two[0], two[1], two[0]]) == ["first (1)", "second", "first (2)"]


def test_the_document_holds_what_the_page_shows(two):
    document = json.loads(to_json(two, NOW))
    assert document["schema"] == 1
    assert [run["name"] for run in document["runs"]] == ["first", "second"]
    run = document["runs"][0]
    assert run["summary"]["workers"] == 3
    assert len(run["metrics"]) == 8
    rows = run["goodput"]["rows"].values()
    assert sum(each["seconds"] for each in rows) == pytest.approx(run["goodput"]["seconds"])
    assert run["summary"]["goodput"] == run["goodput"]["rows"]["training"]["fraction"]
    assert run["configuration"]["seed"] == "7"
    assert {span["kind"] for span in run["spans"]} > {"failed", "held up the others"}
    assert run["not_recorded"] == run["not_readable"] == []
