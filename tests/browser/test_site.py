"""The site of `make site`: nothing from the network, no page wider than its window, search."""

import functools
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browsing import chromium
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.full

SITE = Path(__file__).parents[2] / "build" / "site"
WIDE, NARROW = (1366, 900), (390, 844)
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)"')


@pytest.fixture(scope="module")
def pages():
    found = sorted(SITE.rglob("*.html"))
    assert found, "no site in build/site: make site"
    return found


@pytest.fixture(scope="module")
def address(pages):
    handler = functools.partial(QuietHandler, directory=SITE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def test_no_page_fetches_from_elsewhere(pages):
    for page in pages:
        for targets in FETCHED.findall(page.read_text()):
            target = "".join(targets)
            assert not re.match(r"(?:https?:)?//", target), (page, target)
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.parametrize("window", [WIDE, NARROW], ids=["wide", "narrow"])
def test_pages_fit_their_window(pages, address, window):
    size = {"width": window[0], "height": window[1], "deviceScaleFactor": 1, "mobile": False}
    with chromium(*window) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wider = []
        for page in pages:
            browser.get(f"{address}/{page.relative_to(SITE)}")
            if browser.execute_script("return document.documentElement.scrollWidth > innerWidth"):
                wider.append(page.name)
        assert wider == []


def test_the_first_screen_has_the_command_and_the_picture(address):
    with chromium(*WIDE) as browser:
        browser.get(f"{address}/index.html")
        top = browser.execute_script(
            "return ['.highlight-console', 'article img'].map("
            "(each) => document.querySelector(each).getBoundingClientRect().top)"
        )
        assert all(0 < each < WIDE[1] / 2 for each in top)


@pytest.mark.parametrize(
    ("words", "page"),
    [("clip_by_global_norm", "phalanx.clip"), ("torchrun", "torchrun"), ("gan", "Gan")],
)
def test_search_finds_pages(address, words, page):
    with chromium(*WIDE) as browser:
        browser.get(f"{address}/search.html?q={words}")
        links = "return [...document.querySelectorAll('#search-results li a')].map((a) => a.text)"
        found = WebDriverWait(browser, 60).until(
            lambda each: [text for text in each.execute_script(links) if page in text]
        )
        assert found
