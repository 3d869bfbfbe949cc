"""A real TensorBoard server, and a real Chromium that looks at it."""

import contextlib
import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

INSTALL = Path(__file__).parents[2] / "scripts" / "install_chromium.sh"
BROWSERS = ("chromium", "google-chrome")

START_SECONDS = 300.0
PAGE_SECONDS = 300.0
RELOAD_SECONDS = 20.0

# TensorBoard's older pages are web components, whose text is in shadow roots: innerText does
# not go there, so each root's is read on its own. Styles are no text.
VISIBLE_TEXT = """
const texts = [document.body.innerText];
const walk = (node) => {
  for (const each of node.querySelectorAll("*")) {
    if (!each.shadowRoot) continue;
    for (const child of each.shadowRoot.children)
      if (child.tagName !== "STYLE") texts.push(child.innerText ?? child.textContent);
    walk(each.shadowRoot);
  }
};
walk(document);
return texts.filter(Boolean).join("\\n");
"""


class BrowsingError(AssertionError):
    """The page, the server or the browser was not what the test needs."""


def ensure_chromium():
    """Install Chromium and its driver where they are missing; return both paths."""
    with INSTALL.open() as lock:  # Two installations at once would get in each other's way.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(["sh", INSTALL], capture_output=True, text=True, timeout=600)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if done.returncode or not (browser and driver):
        raise BrowsingError(
            "These tests need Chromium and chromedriver; scripts/install_chromium.sh did not "
            f"bring them:\n{done.stdout}{done.stderr}"
        )
    return browser, driver


@contextlib.contextmanager
def serving(logdir):
    """TensorBoard over `logdir`, on a loopback port of its own choice; gives its URL."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir)]
    command += ["--host", "127.0.0.1", "--port", "0", "--load_fast=false"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield wait_for_runs(server, log)
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait_for_runs(server, log):
    """The URL, once the server answers and has found a run; it finds them while it serves."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        log.seek(0)
        found = re.search(r"http://127\.0\.0\.1:\d+/", log.read())
        if found:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(found[0] + "data/runs", timeout=60) as answer,
            ):
                if answer.read().strip() not in (b"", b"[]"):
                    return found[0]
        time.sleep(0.2)
    log.seek(0)
    ended = f"ended with {server.poll()}" if server.poll() is not None else "showed no run"
    raise BrowsingError(f"TensorBoard {ended} within {START_SECONDS:.0f} s:\n{log.read()}")


@contextlib.contextmanager
def chromium(width=1400, height=1000):
    """A headless Chromium under its driver, with a profile that ends with it."""
    browser, driver = ensure_chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
        ):  # fmt: skip
            options.add_argument(argument)
        session = webdriver.Chrome(options=options, service=Service(driver))
        try:
            session.set_page_load_timeout(PAGE_SECONDS)
            yield session
        finally:
            session.quit()


def look(session, url, png, shown):
    """Open a page, wait until it shows every text in `shown`, save it; return its text."""
    # A new address that differs after "#" only would not reload the page.
    session.get("about:blank")
    session.get(url)
    deadline = time.monotonic() + PAGE_SECONDS
    reload = time.monotonic() + RELOAD_SECONDS
    text, missing = "", list(shown)
    while time.monotonic() < deadline:
        with contextlib.suppress(WebDriverException):
            text = session.execute_script(VISIBLE_TEXT)
            missing = [each for each in shown if each not in text]
        if not missing:
            time.sleep(2)  # The texts come first, then the lines are drawn.
            session.save_screenshot(str(png))
            return session.execute_script(VISIBLE_TEXT)
        if time.monotonic() > reload:
            session.refresh()
            reload = time.monotonic() + RELOAD_SECONDS
        time.sleep(0.3)
    session.save_screenshot(str(png))
    raise BrowsingError(f"{url} does not show {missing} (see {png}). It shows:\n{text}")
