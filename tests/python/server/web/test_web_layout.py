"""The page's look and use: narrow screens, both themes, the keyboard, dialogs."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from .fake import FakeServer, Gate, call, delta, end, error
from .test_web_chat import send

LONG = "x" * 300
ANSWER = f"""# Wide {LONG}

| {" | ".join("column" for _ in range(12))} |
|{"---|" * 12}
| {" | ".join("cell" for _ in range(12))} |

```python
{LONG}
```

> quote with `{LONG}` and [a link](https://example.org/{LONG})

- {LONG}
"""


def fill(page: Page, fake: FakeServer) -> None:
    """A conversation with all kinds of content: wide text, reasoning, a tool call, an error."""
    fake.says(delta(reasoning_content=f"Thinking of {LONG}"), delta(content=ANSWER), end())
    fake.says(call("get_" + "weather" * 20, f'{{"city":"{LONG}"}}'), end("tool_calls"))
    fake.script.append(error(400, LONG))
    for text in (LONG, "Weather?"):
        count = page.locator(".answer").count()
        send(page, text)
        expect(page.locator(".figures").nth(count)).to_be_visible()
    page.locator("summary:visible").click()
    page.get_by_label("Result of").fill("rain")
    page.get_by_role("button", name="Send the result").click()
    expect(page.locator(".trouble:visible")).to_be_visible()


OVERFLOW = """() => [...document.querySelectorAll("body *")].filter((node) => {
  const box = node.getBoundingClientRect();
  const scrolls = node.closest("pre, .table-frame, .row-buttons, .visually-hidden, .conversation-title");
  return box.width > 0 && !(scrolls && scrolls !== node) && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((node) => `${node.tagName}.${node.className}`)"""


def test_nothing_is_wider_than_a_phone(page: Page, fake: FakeServer) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    fill(page, fake)
    inside = "#main, #main *"
    assert page.evaluate(OVERFLOW.replace("body *", inside)) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("#scroller").evaluate("node => node.scrollWidth - node.clientWidth") == 0
    page.get_by_role("button", name="Edit").last.click()
    assert page.evaluate(OVERFLOW.replace("body *", inside)) == []
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Conversations and settings").click()
    page.get_by_role("button", name="Settings", exact=True).click()
    assert page.evaluate(OVERFLOW.replace("body *", "dialog, dialog *")) == []


def test_the_list_is_a_drawer_on_a_phone(page: Page, fake: FakeServer) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    fake.says(delta(content="Hello"), end())
    send(page, "Hi")
    expect(page.locator(".figures")).to_be_visible()
    expect(page.get_by_role("button", name="New conversation")).to_be_hidden()
    opener = page.get_by_role("button", name="Conversations and settings")
    opener.click()
    expect(page.get_by_role("button", name="New conversation")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="New conversation")).to_be_hidden()
    expect(opener).to_be_focused()
    opener.click()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(page.locator(".answer")).to_have_count(0)


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const linear = (part) => (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const low = new Map();
  let count = 0;
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    const shown = node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!text.data.trim() || !shown) continue;
    count += 1;
    const [a, b] = [luminance(rgba(getComputedStyle(node).color)), luminance(background(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.set(`${node.tagName}.${node.className}`, ratio);
  }
  return [count, [...low]];
}"""


def is_dark(page: Page) -> bool:
    red: int = page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    return red < 128


def choose_theme(page: Page, theme: str) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Theme").select_option(theme)
    page.get_by_role("button", name="Save").click()


def test_the_theme_is_the_systems_or_the_chosen_one(page: Page) -> None:
    for chosen in ("system", "light", "dark"):
        choose_theme(page, chosen)
        for system in ("light", "dark"):
            page.emulate_media(color_scheme=system)
            assert is_dark(page) == ((system if chosen == "system" else chosen) == "dark")
    page.reload()
    page.emulate_media(color_scheme="light")
    assert is_dark(page)


def test_text_stands_out_in_both_themes(page: Page, fake: FakeServer) -> None:
    page.emulate_media(reduced_motion="reduce")  # no colour is on its way to another
    fill(page, fake)
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        for dialog in (False, True):
            if dialog:
                page.get_by_role("button", name="Settings").click()
            count, low = page.evaluate(CONTRAST)
            assert count > (60 if dialog else 30) and low == []
        page.keyboard.press("Escape")


def back_to(page: Page, target: Locator) -> None:
    """Go back with the Tab key to an element; the focus must be seen on the way."""
    for _ in range(30):
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") in ("solid", "auto")
        if target.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError(f"{target}: not reached with the keyboard")


def test_everything_is_done_with_the_keyboard(page: Page, fake: FakeServer) -> None:
    field = page.get_by_role("textbox", name="Message")
    back_to(page, page.get_by_role("link", name="Skip to the message box"))
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    fake.says(delta(reasoning_content="Hm."), delta(content="Long"), Gate())
    fake.says(call("get_weather", "{}"), end("tool_calls"))
    fake.says(delta(content="Rain it is."), end())
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(page.locator(".bubble")).to_have_text("one\ntwo")
    expect(page.locator(".answer")).to_contain_text("Long")
    page.keyboard.press("Escape")
    expect(page.locator(".answer")).to_contain_text("Stopped.")
    page.keyboard.type("again")
    page.keyboard.press("Enter")
    expect(page.locator(".call")).to_be_visible()
    back_to(page, page.get_by_label("Result of get_weather"))
    page.keyboard.type("rain")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".answer").last).to_contain_text("Rain it is.")
    expect(field).to_be_focused()


def test_the_focus_stays_in_a_dialog_and_comes_back(page: Page) -> None:
    opener = page.get_by_role("button", name="Settings")
    opener.focus()
    page.keyboard.press("Enter")
    for _ in range(40):
        page.keyboard.press("Tab")
        inside = (
            "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
        )
        assert page.evaluate(inside)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(opener).to_be_focused()


def test_the_thread_follows_unless_the_reader_went_up(page: Page, fake: FakeServer) -> None:
    gates = [Gate(), Gate()]
    lines = "\n\n".join(f"line {number}" for number in range(60))
    fake.says(
        delta(content=lines), gates[0], delta(content="\n\nlate"), gates[1], delta(content="\n\nend"), end()
    )
    send(page, "Go")
    below = "node => node.scrollHeight - node.scrollTop - node.clientHeight"
    scroller = page.locator("#scroller")
    expect(page.get_by_text("line 59", exact=True)).to_be_in_viewport()
    scroller.hover()
    page.mouse.wheel(0, -600)
    jump = page.get_by_role("button", name="Latest")
    expect(jump).to_be_visible()
    gates[0].open()
    expect(page.locator(".answer").get_by_text("late", exact=True)).to_be_attached()
    assert scroller.evaluate(below) > 300
    jump.click()
    expect(jump).to_be_hidden()
    gates[1].open()
    expect(page.locator(".answer").get_by_text("end", exact=True)).to_be_in_viewport()
    assert scroller.evaluate(below) < 5


def test_nothing_moves_for_who_does_not_want_it(page: Page, fake: FakeServer) -> None:
    page.emulate_media(reduced_motion="reduce")
    fake.says(delta(reasoning_content="Hm."), Gate())
    send(page, "Go")
    expect(page.locator("summary")).to_contain_text("Thinking")
    moving = "[...document.querySelectorAll('*')].flatMap((node) => node.getAnimations()).length"
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(moving) > 0
