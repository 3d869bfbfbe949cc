"""Fixtures for looking at TensorBoard; Chromium is installed when it is missing."""

import contextlib

import pytest
from browsing import chromium, look, serving


@pytest.fixture
def tensorboard_server():
    """`tensorboard_server(logdir)` starts a server, stopped after the test; gives its URL."""
    with contextlib.ExitStack() as servers:
        yield lambda logdir: servers.enter_context(serving(logdir))


@pytest.fixture(scope="session")
def browser():
    with chromium() as session:
        yield session


@pytest.fixture
def page_text_and_screenshot(browser):
    """`page_text_and_screenshot(url, png, shown=[...])`: see `browsing.look`."""
    return lambda url, png, shown=(): look(browser, url, png, shown)
