"""What a person sees who opens a report: every figure drawn, and nothing loaded to do so."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browsing import PAGE_SECONDS
from selenium.webdriver.support.ui import WebDriverWait

from made_run import BEGAN, make_run
from phalanx.report.compare import compare_page
from phalanx.report.html import render
from phalanx.report.run_data import load_run
from phalanx.report.run_page import report_page

EVIL = "<img src=/evil.png onerror=\"document.body.id='evil'\">"
"""As a name in a run: a browser that took it for markup would ask for the image."""

# For each figure: how many lines, areas, bars and points were drawn, and whether it has a size.
DRAWN = """
return Object.fromEntries([...document.querySelectorAll(".plot")].map((plot) => [plot.id, {
  marks: plot.querySelectorAll(".js-line, .js-fill, .bars .point path, .points path").length,
  width: plot.querySelector(".main-svg")?.getBoundingClientRect().width ?? 0,
}]));
"""
LOADED = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
TITLES = "return [...document.querySelectorAll('#metric-loss .xtitle')].map((e) => e.textContent)"
LAST_TICK = """
return Math.max(...[...document.querySelectorAll("#metric-loss .xtick")]
  .map((tick) => Number(tick.textContent)));
"""


class Server(ThreadingHTTPServer):
    """Serves a directory, and keeps in mind what was asked for."""

    def __init__(self, directory):
        self.requested, self.directory = [], directory
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(directory)))


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, text, *words):
        self.server.requested.append(self.path)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """`report.html` and `comparison.html`, served."""
    root = tmp_path_factory.mktemp("pages")
    first = load_run(make_run(root, "first"))
    second = load_run(make_run(root, "second", workers=2, epochs=3, restart=False))
    evil = make_run(root, "evil")
    (evil / "records" / "worker-0.jsonl").write_text(
        (evil / "records" / "worker-0.jsonl").read_text().replace("accuracy", quoted(EVIL))
    )
    now = BEGAN + 100
    (root / "report.html").write_text(render(report_page(first, now)))
    (root / "comparison.html").write_text(render(compare_page([first, second], now)))
    (root / "evil.html").write_text(render(report_page(load_run(evil), now)))
    server = Server(root)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def quoted(text):
    return text.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture
def opened(pages, browser):
    """`opened(name)`: the page's figures, once they are drawn, and the messages of the console."""

    def open_page(name):
        pages.requested.clear()
        browser.get_log("browser")
        browser.get(f"http://127.0.0.1:{pages.server_port}/{name}")
        WebDriverWait(browser, PAGE_SECONDS).until(
            lambda session: session.execute_script("return document.body.dataset.drawn")
        )
        return browser.execute_script(DRAWN)

    return open_page


FIGURES = {
    "metric-loss", "metric-accuracy", "learning-rate", "gradients-2f-norm",
    "gradients-2f-clipped-5f-norm", "gradients-2f-clip-5f-fraction",
    "gradients-2f-cosine-5f-similarity", "gradients-2f-noise-5f-scale", "variables",
    "throughput", "step-seconds", "split", "workers", "memory", "timeline", "goodput",
}  # fmt: skip


def test_every_figure_is_drawn(opened, browser):
    drawn = opened("report.html")
    assert set(drawn) == FIGURES
    assert {name for name, each in drawn.items() if each["marks"] == 0} == set()
    assert {name for name, each in drawn.items() if each["width"] < 300} == set()
    assert drawn["split"]["marks"] >= 3 * 5  # Five shares of three workers.
    assert drawn["timeline"]["marks"] >= 3 + 3 + 1 + 4 + 4 + 1
    text = browser.execute_script("return document.body.innerText")
    for shown in ("first", "ended well", "MemoryError: cannot hold another batch", "9,332,200"):
        assert shown in text


@pytest.mark.parametrize("name", ["report.html", "comparison.html", "evil.html"])
def test_nothing_is_loaded_and_nothing_complains(opened, browser, pages, name):
    opened(name)
    requested = [
        path for path in pages.requested if path != "/favicon.ico"
    ]  # The browser's own idea.
    assert requested == [f"/{name}"]
    assert [url for url in browser.execute_script(LOADED) if "favicon" not in url] == []
    output = [each["message"] for each in browser.get_log("browser")]
    assert [message for message in output if "favicon" not in message] == []


def test_what_a_run_calls_things_is_text(opened, browser):
    assert len(opened("evil.html")) == len(FIGURES)
    assert browser.execute_script("return document.body.id") == ""
    assert browser.execute_script("return document.images.length") == 0
    assert EVIL in browser.execute_script("return document.body.innerText")
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.ytitle')].map((e) => e.textContent)"
    )
    assert EVIL in titles


def test_the_page_needs_no_server(pages, browser, tmp_path):
    (tmp_path / "moved.html").write_bytes((pages.directory / "report.html").read_bytes())
    browser.get((tmp_path / "moved.html").as_uri())
    WebDriverWait(browser, PAGE_SECONDS).until(
        lambda session: session.execute_script("return document.body.dataset.drawn")
    )
    assert set(browser.execute_script(DRAWN)) == FIGURES


def test_the_curves_turn_from_steps_to_time_and_back(opened, browser):
    opened("report.html")
    for axis, title, last in (
        ("steps", "step", 200), ("seconds", "seconds since the run began", 60),
        ("steps", "step", 200),
    ):  # fmt: skip
        browser.find_element("css selector", f"input[value={axis}]").click()
        wait = WebDriverWait(browser, PAGE_SECONDS)
        wait.until(lambda session, title=title: session.execute_script(TITLES) == [title])
        assert last <= browser.execute_script(LAST_TICK) < 2 * last


def test_two_runs_lie_over_each_other(opened, browser, tmp_path):
    drawn = opened("comparison.html")
    assert {"metric-loss", "metric-accuracy", "throughput", "gradients-2f-norm"} <= set(drawn)
    assert drawn["metric-loss"]["marks"] >= 6
    browser.save_screenshot(str(tmp_path / "comparison.png"))
    assert (tmp_path / "comparison.png").stat().st_size > 10_000


def test_a_screenshot(opened, browser, tmp_path):
    opened("report.html")
    browser.save_screenshot(str(tmp_path / "report.png"))
    assert (tmp_path / "report.png").stat().st_size > 20_000
