"""Chromium on the page. Every test fails on an error of the page, and on a request to another origin."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from .fake import FakeServer

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CLEAR = """if (location.protocol === "http:") {
  const test = new URLSearchParams(location.search).get("test");
  if (localStorage.getItem("test") !== test) {
    localStorage.clear();
    sessionStorage.clear();
    localStorage.setItem("test", test);
  }
}"""
"""Runs before the page's scripts; clears the storage when a test begins, not when it loads the page again."""
_numbers = itertools.count()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Scoped to these tests, as Playwright's event loop runs in this thread until it ends."""
    if not CHROMIUM.exists() and "CI" not in os.environ:
        pytest.skip(f"{CHROMIUM}: not installed")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="package")
def _running() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def fake(_running: FakeServer) -> FakeServer:
    _running.reset()
    return _running


def _is_fault(text: str) -> bool:
    """Whether a message of the console is about the page. Chromium also logs each answer that is an error."""
    return "Failed to load resource" not in text


class Watch:
    """Faults of a page: exceptions, messages in the console, requests to another origin than the server's."""

    def __init__(self, page: Page, origin: str) -> None:
        self.faults: list[str] = []
        self._origin = urlsplit(origin)[:2]
        page.context.on("request", lambda request: self._check(request.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda entry: self._hear(entry.type, entry.text))

    def _check(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme != "blob" and parts[:2] != self._origin:
            self.faults.append(f"request to {address}")

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and _is_fault(text):
            self.faults.append(text)


@pytest.fixture(scope="package")
def _watched(browser: Browser, _running: FakeServer) -> Iterator[tuple[Page, Watch]]:
    """One page for all tests, as a new one takes Chromium more than a second."""
    with browser.new_context() as context:
        context.add_init_script(CLEAR)
        page = context.new_page()
        page.set_default_timeout(10_000)
        yield page, Watch(page, _running.url)


@pytest.fixture
def watch(_watched: tuple[Page, Watch]) -> Watch:
    return _watched[1]


@pytest.fixture
def page(_watched: tuple[Page, Watch], watch: Watch, fake: FakeServer) -> Iterator[Page]:
    """The page, with an empty storage, light, 1280 pixels wide."""
    page = _watched[0]
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    page.goto(f"{fake.url}/?test={next(_numbers)}")
    page.locator("#composer-text:focus").wait_for()
    yield page
    page.goto("about:blank")
    faults = [*watch.faults]
    watch.faults.clear()
    assert faults == []
