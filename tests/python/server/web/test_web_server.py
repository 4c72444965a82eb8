"""The page with llama-server itself, under a prefix and with an API key: answers, cache, tools, errors."""

from __future__ import annotations

from collections.abc import Callable

from llama_k3.server.engine.request import Sampling
from llama_k3.server.options import ServerOptions
from playwright.sync_api import Browser, expect

from ..conftest import RunningServer
from .conftest import Watch
from .test_web_chat import send

GREEDY = Sampling(temperature=0.0)
WEATHER = "What is the weather in Lisbon?"


def test_a_conversation_with_the_server(browser: Browser, make_server: Callable[..., RunningServer]) -> None:
    server = make_server(ServerOptions(api_prefix="/k3", api_keys=("sesame",), sampling=GREEDY))
    with browser.new_context() as context:
        page = context.new_page()
        watch = Watch(page, server.url)
        page.goto(f"{server.url}/k3")
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key", exact=True).fill("sesame")
        dialog.get_by_role("button", name="Use the key").click()
        expect(page.locator("#context-text")).to_have_text("0 / 1,024")

        send(page, "What is 27 + 15?")
        first = page.locator(".answer").first
        expect(first.locator(".markdown").last).to_contain_text("42")
        expect(first.locator(".figures")).to_contain_text("0 cached")
        send(page, "Repeat after me: seven red boats")
        second = page.locator(".answer").nth(1)
        expect(second.locator(".markdown").last).to_contain_text("seven red boats")
        cached = second.locator(".figures span").nth(2)
        expect(cached).to_contain_text("cached")
        assert int(cached.inner_text().split()[0]) > 20

        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Insert an example").click()
        page.get_by_role("button", name="Save").click()
        page.get_by_role("button", name="New conversation").click()
        send(page, WEATHER)
        expect(page.locator(".call-name")).to_have_text("get_weather")
        expect(page.locator(".call pre").first).to_contain_text("Lisbon")
        page.get_by_label("Result of get_weather").fill("sunny, 24 degrees")
        page.get_by_role("button", name="Send the result").click()
        expect(page.locator(".answer").nth(1).locator(".markdown").last).to_contain_text("sunny")

        page.get_by_role("button", name="New conversation").click()
        send(page, "boats " * 2000)
        expect(page.locator(".trouble")).to_contain_text("the server's context holds 1024")
        assert watch.faults == []
