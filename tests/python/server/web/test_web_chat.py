"""Chatting on the page: sending, streaming, stopping, editing, tools, keys and errors."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from .fake import Drop, FakeServer, Gate, call, delta, end, error, progress


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.keyboard.press("Enter")


def test_an_answer_is_shown_while_it_comes(page: Page, fake: FakeServer) -> None:
    gates = [Gate() for _ in range(4)]
    fake.says(
        gates[0], progress(600),
        gates[1], delta(reasoning_content="They greet"), delta(reasoning_content=" me."),
        gates[2], delta(content="Hello **wor"), gates[3], delta(content="ld**!"), end(reasoning=7),
    )  # fmt: skip
    send(page, "Hi")
    shown = page.locator(".answer")
    expect(shown).to_contain_text("Waiting for the server")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    gates[0].open()
    expect(shown).to_contain_text("Reading the prompt: 600 of 1,100 tokens")
    assert shown.locator("progress").evaluate("bar => bar.value") == 0.5
    gates[1].open()
    expect(shown.locator("summary")).to_have_text("Thinking… 2 tokens")
    expect(shown.locator(".progress")).to_be_hidden()
    gates[2].open()
    expect(shown.locator(".markdown").last).to_have_text("Hello **wor")
    gates[3].open()
    expect(shown.locator("strong")).to_have_text("world")
    expect(shown.locator("summary")).to_have_text("Thought for 7 tokens")
    expect(shown.locator(".figures")).to_have_text("50.0 tokens/s25 tokens340 cached12 read")
    expect(page.locator("#context-text")).to_have_text("377 / 4,096")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    shown.locator("summary").click()
    expect(shown.locator(".reasoning-text")).to_have_text("They greet me.")
    expect(page.locator("#announcer")).to_have_text("Hello **world**!")


def test_history_goes_back_with_its_reasoning(page: Page, fake: FakeServer) -> None:
    fake.says(delta(reasoning_content="A sum."), delta(content="42"), end())
    fake.says(delta(content="Sure."), end())
    send(page, "27 + 15?")
    expect(page.locator(".figures")).to_be_visible()
    send(page, "Sure?")
    expect(page.locator(".answer").nth(1)).to_contain_text("Sure.")
    first, second = fake.requests
    assert first["stream"] and first["stream_options"] == {"include_usage": True} and first["return_progress"]
    assert second["messages"] == [
        {"role": "user", "content": "27 + 15?"},
        {"role": "assistant", "content": "42", "reasoning_content": "A sum."},
        {"role": "user", "content": "Sure?"},
    ]


def test_stop_keeps_what_came(page: Page, fake: FakeServer) -> None:
    for use_key in (False, True):
        fake.left.clear()
        fake.says(delta(content="One, two"), Gate())
        send(page, "Count")
        shown = page.locator(".answer").last
        expect(shown).to_contain_text("One, two")
        if use_key:
            page.keyboard.press("Escape")
        else:
            page.get_by_role("button", name="Stop").click()
        expect(shown).to_contain_text("Stopped.")
        assert fake.left.wait(10)
        expect(shown).to_contain_text("One, two")
        expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_regenerate_and_edit(page: Page, fake: FakeServer) -> None:
    for text in ("First", "Second", "Third"):
        fake.says(delta(content=text), end())
    send(page, "Say it")
    expect(page.locator(".answer")).to_contain_text("First")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".answer")).to_contain_text("Second")
    expect(page.locator(".answer")).to_have_count(1)
    page.get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Edit the message")
    expect(field).to_have_value("Say it")
    field.fill("Say another")
    field.press("Enter")
    expect(page.locator(".answer")).to_contain_text("Third")
    assert [request["messages"] for request in fake.requests] == [
        [{"role": "user", "content": text}] for text in ("Say it", "Say it", "Say another")
    ]


def test_a_tool_call_is_shown_and_answered(page: Page, fake: FakeServer) -> None:
    fake.says(
        delta(reasoning_content="Look it up."),
        call("get_weather", '{"city":"Pa', 'ris","day":12345678901234567890}'),
        call("get_time", "{}", id="call_2", index=1),
        end("tool_calls"),
    )
    fake.says(delta(content="It rains at noon."), end())
    send(page, "Weather?")
    cards = page.locator(".call")
    expect(cards).to_have_count(2)
    expect(cards.first.locator(".call-name")).to_have_text("get_weather")
    pretty = '{\n  "city": "Paris",\n  "day": 12345678901234567890\n}'
    assert cards.first.locator("pre").text_content() == pretty
    page.get_by_label("Result of get_weather").fill('{"sky": "rain"}')
    page.get_by_label("Result of get_time").fill("12:00")
    page.get_by_role("button", name="Send the results").click()
    expect(page.locator(".answer").nth(1)).to_contain_text("It rains at noon.")
    expect(cards.nth(1)).to_contain_text("12:00")
    _, asked, *results = fake.requests[1]["messages"]
    assert asked["reasoning_content"] == "Look it up."
    assert [item["function"]["arguments"] for item in asked["tool_calls"]] == [
        '{"city":"Paris","day":12345678901234567890}',
        "{}",
    ]
    assert results == [
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"sky": "rain"}'},
        {"role": "tool", "tool_call_id": "call_2", "name": "get_time", "content": "12:00"},
    ]


def test_reload_keeps_the_conversation(page: Page, fake: FakeServer) -> None:
    fake.says(delta(content="Kept."), end())
    send(page, "Keep this")
    expect(page.locator(".figures")).to_be_visible()
    page.reload()
    expect(page.locator(".user")).to_contain_text("Keep this")
    expect(page.locator(".answer")).to_contain_text("Kept.")
    expect(page.locator("#context-text")).to_have_text("377 / 4,096")


def test_a_page_that_goes_away_keeps_what_came(page: Page, fake: FakeServer) -> None:
    fake.says(delta(content="Half an ans"), Gate())
    send(page, "Go on")
    expect(page.locator(".answer")).to_contain_text("Half an ans")
    page.reload()
    expect(page.locator(".answer")).to_contain_text("Half an ans")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_conversations_are_named_renamed_exported_and_deleted(page: Page, fake: FakeServer) -> None:
    for title in ("Red boats", "Blue lamps"):
        fake.says(delta(content=f"About {title}"), end())
        page.get_by_role("button", name="New conversation").click()
        send(page, title)
        expect(page.locator(".figures")).to_be_visible()
    titles = page.locator(".conversation-title")
    expect(titles).to_have_text(["Blue lamps", "Red boats"])
    page.get_by_role("button", name="Red boats", exact=True).click()
    expect(page.locator(".answer")).to_contain_text("About Red boats")
    page.get_by_role("button", name="Rename Red boats").click()
    page.keyboard.type("Green tea")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Rename Green tea")).to_be_focused()
    expect(titles).to_have_text(["Blue lamps", "Green tea"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Green tea")
    with page.expect_download() as got:
        page.get_by_role("button", name="Export Green tea").click()
    assert got.value.suggested_filename == "green-tea.json"
    exported = json.loads(got.value.path().read_text())
    assert [message["content"] for message in exported["messages"]] == ["Red boats", "About Red boats"]
    page.get_by_role("button", name="Delete Green tea").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(titles).to_have_text(["Blue lamps"])
    page.reload()
    expect(titles).to_have_text(["Blue lamps"])


def test_the_oldest_conversations_make_room(page: Page, fake: FakeServer) -> None:
    """200 are kept, or as many as the browser's storage holds."""
    put = """([count, size]) => {
      const old = Object.keys(localStorage).filter((name) => name !== "test");
      old.forEach((name) => localStorage.removeItem(name));
      for (let index = 0; index < count; index += 1) {
        const messages = [{ role: "assistant", content: "", reasoning: "x".repeat(size) }];
        localStorage.setItem(`llama-k3.conversation.${index}`,
          JSON.stringify({ id: String(index), title: `Old ${index}`, updated: index, messages }));
      }
    }"""
    for count, size, left in ((200, 10, 200), (4, 1_200_000, 4)):
        fake.says(delta(content="New", reasoning_content="y" * (size // 2)), end())
        page.evaluate(put, [count, size])
        page.reload()
        page.get_by_role("button", name="New conversation").click()
        send(page, "Newest")
        expect(page.locator(".figures").last).to_be_visible()
        titles = page.locator(".conversation-title")
        expect(page.get_by_role("status")).to_contain_text("the 1 oldest conversations were removed")
        assert titles.count() == left
        assert titles.first.inner_text() == "Newest" and titles.last.inner_text() == "Old 1"


def test_a_broken_storage_is_passed_over(page: Page) -> None:
    put = """() => {
      const put = (name, value) => localStorage.setItem(`llama-k3.${name}`, value);
      put("conversation.a", "{");
      const messages = [null, { role: "x" }, { role: "assistant", content: "yes", toolCalls: [null] }];
      put("conversation.b", JSON.stringify({ id: "b", title: 3, messages }));
      put("conversation.c", '{"id": "c", "messages": {}}');
      put("settings", '{"theme": "pink", "temperature": "hot", "tools": "[1]", "top_k": "7"}');
    }"""
    page.evaluate(put)
    page.reload()
    expect(page.locator(".conversation-title")).to_have_text(["3"])
    expect(page.locator(".answer")).to_contain_text("yes")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Top k")).to_have_value("7")
    expect(page.get_by_label("Temperature")).to_have_value("")
    expect(page.get_by_label("Tools (JSON)")).to_have_value("")


def test_a_new_title_is_kept_when_another_conversation_is_clicked(page: Page, fake: FakeServer) -> None:
    for title in ("Red boats", "Blue lamps"):
        fake.says(delta(content=f"About {title}"), end())
        page.get_by_role("button", name="New conversation").click()
        send(page, title)
        expect(page.locator(".figures")).to_be_visible()
    page.get_by_role("button", name="Rename Blue lamps").click()
    page.keyboard.type("Black coffee")
    page.get_by_role("button", name="Red boats", exact=True).click()
    expect(page.locator(".answer")).to_contain_text("About Red boats")
    page.get_by_role("button", name="Rename Red boats").click()
    page.keyboard.type("Lost")
    page.keyboard.press("Escape")
    expect(page.locator(".conversation-title")).to_have_text(["Black coffee", "Red boats"])


def test_a_message_cannot_be_changed_under_an_answer(page: Page, fake: FakeServer) -> None:
    fake.says(delta(content="Slow"), Gate())
    fake.says(delta(content="Quick"), end())
    send(page, "One")
    expect(page.locator(".answer")).to_contain_text("Slow")
    page.get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Edit the message")
    field.fill("Two")
    field.press("Enter")
    expect(page.get_by_role("status")).to_have_text("An answer is being made. Stop it first.")
    page.get_by_role("button", name="Stop").click()
    expect(field).to_have_value("Two")
    field.press("Enter")
    expect(page.locator(".answer")).to_contain_text("Quick")
    expect(page.get_by_role("status")).to_be_hidden()


def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page, fake: FakeServer) -> None:
    gate = Gate()
    fake.says(delta(content="Slow"), gate, delta(content=" and sure"), end())
    fake.says(delta(content="Quick"), end())
    send(page, "Slow one")
    expect(page.locator(".answer")).to_contain_text("Slow")
    page.get_by_role("button", name="New conversation").click()
    send(page, "Quick one")
    expect(page.locator(".answer")).to_contain_text("Quick")
    expect(page.get_by_role("img", name="answering")).to_be_visible()
    gate.open()
    expect(page.get_by_role("img", name="answering")).to_be_hidden()
    page.get_by_role("button", name="Slow one", exact=True).click()
    expect(page.locator(".answer")).to_contain_text("Slow and sure")


def test_settings_are_sent_and_kept(page: Page, fake: FakeServer) -> None:
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Temperature").get_attribute("placeholder") == "0.8"
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("3 hot")
    page.get_by_label("Tools (JSON)").fill('[{"type": "function"}]')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Found 3 hot, wanted a number from 0 to 100.")).to_be_visible()
    expect(page.get_by_text("Tool 1: wanted")).to_be_visible()
    expect(page.get_by_label("Temperature")).to_be_focused()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Top k").fill("20")
    page.get_by_label("Most tokens of an answer").fill("64")
    page.get_by_label("Think before answering").select_option("On")
    page.get_by_label("Effort").select_option("Low")
    page.get_by_role("button", name="Insert an example").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.reload()
    for _ in range(2):
        fake.says(delta(content="Yes."), end())
    send(page, "So?")
    expect(page.locator(".figures")).to_be_visible()
    sent = fake.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["top_k"], sent["max_tokens"]) == (0, 20, 64)
    assert "top_p" not in sent and "min_p" not in sent
    assert (sent["reasoning_effort"], sent["chat_template_kwargs"]) == ("low", {"thinking": True})
    assert sent["tools"][0]["function"]["name"] == "get_weather"
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Think before answering").select_option("Off")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".figures")).to_be_visible()
    assert fake.requests[1]["reasoning_effort"] == "none"
    assert "chat_template_kwargs" not in fake.requests[1]


def test_the_key_is_asked_for_and_kept_for_the_tab(page: Page, fake: FakeServer) -> None:
    fake.key = "sesame"
    fake.says(delta(content="Open."), end())
    send(page, "Let me in")
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("clé")
    dialog.get_by_role("button", name="Use the key").click()
    expect(dialog).to_contain_text("ASCII only")
    dialog.get_by_label("Key", exact=True).fill("wrong")
    dialog.get_by_role("button", name="Use the key").click()
    expect(dialog).to_contain_text("does not know this key")
    dialog.get_by_label("Key", exact=True).fill("sesame")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_contain_text("Open.")
    assert page.evaluate("[Object.values(sessionStorage), localStorage['llama-k3.api-key'] ?? null]") == [
        ["sesame"],
        None,
    ]
    page.reload()
    expect(page.locator("#context-text")).to_have_text("377 / 4,096")
    expect(dialog).to_be_hidden()


def test_the_key_is_asked_for_at_the_start_and_may_be_remembered(page: Page, fake: FakeServer) -> None:
    fake.key = "sesame"
    page.reload()
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("sesame")
    dialog.get_by_label("Remember it").check()
    dialog.get_by_role("button", name="Use the key").click()
    expect(page.locator("#model-name")).to_contain_text("kimi-k3")
    assert page.evaluate("[sessionStorage.length, localStorage['llama-k3.api-key']]") == [0, "sesame"]


def test_without_a_key_the_message_waits_with_a_way_to_try_again(page: Page, fake: FakeServer) -> None:
    fake.key = "sesame"
    fake.says(delta(content="Open."), end())
    send(page, "Let me in")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".trouble")).to_contain_text("It needs a valid API key.")
    fake.key = None
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer")).to_contain_text("Open.")


def test_errors_are_told_in_words(page: Page, fake: FakeServer) -> None:
    fake.script += [
        error(400, "too long", "context_length_exceeded", n_prompt_tokens=5000, n_ctx=4096),
        error(503, "The queue is full: 200 requests wait."),
        error(500, "Internal error 12"),
        error(400, "top_k: found -5, wanted at least 0"),
    ]
    fake.says({"error": {"code": 500, "message": "In the middle", "type": "server_error"}})
    fake.says(delta(content="At last"), end())
    send(page, "Hello")
    trouble = page.locator(".trouble")
    for title, text in (
        ("This conversation is too long", "It has 5000 tokens; the server's context holds 4096."),
        ("The server is busy", "The queue is full: 200 requests wait. Try again in a moment."),
        ("The server failed", "Internal error 12"),
        ("The server did not accept this request", "top_k: found -5, wanted at least 0"),
        ("The server failed", "In the middle"),
    ):
        expect(trouble).to_contain_text(title)
        expect(trouble).to_contain_text(text)
        page.get_by_role("button", name="Try again").click()
    expect(page.locator(".answer")).to_contain_text("At last")
    expect(trouble).to_be_hidden()


@pytest.mark.parametrize("clean", [False, True])
def test_a_lost_connection_keeps_what_came(page: Page, fake: FakeServer, clean: bool) -> None:
    gate = Gate()
    fake.says(delta(reasoning_content="Hm."), delta(content="Half"), gate, Drop(clean))
    fake.says(delta(content="Whole"), end())
    send(page, "Hello")
    shown = page.locator(".answer")
    expect(shown).to_contain_text("Half")
    gate.open()
    expect(shown).to_contain_text("Connection lost")
    expect(shown).to_contain_text("Half")
    page.reload()
    expect(shown).to_contain_text("Half")
    page.get_by_role("button", name="Try again").click()
    expect(shown).to_contain_text("Whole")
    expect(shown).not_to_contain_text("Half")


def test_the_end_by_length_is_told(page: Page, fake: FakeServer) -> None:
    fake.says(delta(reasoning_content="So much to think"), end("length"))
    send(page, "Hard one")
    expect(page.locator(".answer")).to_contain_text("Ended by the token limit.")
