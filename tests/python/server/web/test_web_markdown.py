"""The page's markdown: what it shows, that nothing in it runs or loads, and that cuts do not matter."""

from __future__ import annotations

import random
import re

from playwright.sync_api import Page, expect

from .conftest import Watch
from .fake import FakeServer, delta, end
from .test_web_chat import send

RENDER = """async ([text, cuts]) => {
  const { MarkdownView } = await import("/web/js/markdown/render.js");
  const box = document.createElement("div");
  const view = new MarkdownView(box);
  cuts.forEach((cut) => view.update(text.slice(0, cut)));
  view.update(text);
  box.querySelectorAll(".code-head, [title]").forEach((node) => {
    if (node.matches(".code-head")) node.remove();
    node.removeAttribute("title");
  });
  return box.innerHTML.replace(/ (dir|tabindex|role|aria-label|target|rel)="[^"]*"/g, "");
}"""


def render(page: Page, text: str, cuts: tuple[int, ...] = ()) -> str:
    html: str = page.evaluate(RENDER, [text, list(cuts)])
    return html


CASES = {
    "# One\n## Two #\nText\n- - -": '<h3 class="level-1">One</h3><h4 class="level-2">Two</h4><p>Text</p><hr>',
    "#hashtag": "<p>#hashtag</p>",
    "a *b* **c** ~~e~~ `f*g*`": "<p>a <em>b</em> <strong>c</strong> <del>e</del> <code>f*g*</code></p>",
    "***d***": "<p><em><strong>d</strong></em></p>",
    "snake_case_name 2*3*4 * x": "<p>snake_case_name 2<em>3</em>4 * x</p>",
    "**重点：**内容": "<p><strong>重点：</strong>内容</p>",
    "one\ntwo  \nthree<br>four": "<p>one<br>two<br>three<br>four</p>",
    r"\*plain\* &lt;b&gt; &#65; &nosuch;": "<p>*plain* &lt;b&gt; A &amp;nosuch;</p>",
    r"\(a_1 * b_2\) and": '<p><code class="math">a_1 * b_2</code> and</p>',
    "$$\nx = 1\n\nend": "<p>$$<br>x = 1</p><p>end</p>",
    "\\[\nx = 1\n\\]": '<pre class="math">x = 1</pre>',
    "`` a`b `` ` c": "<p><code>a`b</code> ` c</p>",
    "```py\nif a < b:\n    c()\n\n```\nend": """
        <div class="code-block"><pre><code>if a &lt; b:\n    c()\n</code></pre></div><p>end</p>""",
    "> a\n> - b\n\nc": """
        <blockquote><p>a</p><ul class="tight"><li><p>b</p></li></ul></blockquote><p>c</p>""",
    "1. a\n   - b\n   - c\n2. d": """
        <ol class="tight"><li><p>a</p><ul class="tight"><li><p>b</p></li><li><p>c</p></li></ul></li>
        <li><p>d</p></li></ol>""",
    "3) a\n\n4) b": '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>',
    "- [x] done\n- [ ] open": """
        <ul class="tight"><li class="task"><input type="checkbox" disabled="" checked=""><p>done</p></li>
        <li class="task"><input type="checkbox" disabled=""><p>open</p></li></ul>""",
    "- a\n\n  ```\n  x\n\n\n  y\n  ```": """
        <ul class="tight"><li><p>a</p>
        <div class="code-block"><pre><code>x\n\n\ny</code></pre></div></li></ul>""",
    "|a|b|\n|-|:-:|\n|1|`x\\|y`|\n|2|\n\nend": """
        <div class="table-frame"><table>
        <thead><tr><th class="align-left">a</th><th class="align-center">b</th></tr></thead>
        <tbody><tr><td class="align-left">1</td><td class="align-center"><code>x|y</code></td></tr>
        <tr><td class="align-left">2</td><td class="align-center"></td></tr></tbody>
        </table></div><p>end</p>""",
    "[a *b*](https://e.org/x_(1) 'T') <https://e.org>": """
        <p><a href="https://e.org/x_(1)">a <em>b</em></a> <a href="https://e.org/">https://e.org</a></p>""",
    "See https://e.org/a_b_c). Ok": """
        <p>See <a href="https://e.org/a_b_c">https://e.org/a_b_c</a>). Ok</p>""",
    "[m](mailto:a@e.org) ![cat](https://e.org/cat.png)": """
        <p><a href="mailto:a@e.org">m</a> <a href="https://e.org/cat.png">cat</a></p>""",
    "**see [1 for more** [x]": "<p><strong>see [1 for more</strong> [x]</p>",
}
"""Markdown and its elements; a line break with an indent is only there for the reader."""


def test_markdown_becomes_elements(page: Page) -> None:
    for text, html in CASES.items():
        assert render(page, text) == re.sub(r"\n {8}", "", html), text


HOSTILE = """<script>window.pwned = 1</script>
<img src=x onerror="window.pwned = 1"> <svg onload=alert(1)>
[a](javascript:window.pwned=1) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>alert(1)</script>)
[d](  javascript:alert(1)) [e](&#106;avascript:alert(1)) [f](vbscript:x) [g](file:///etc/passwd)
[h](//evil.example/)
<javascript:alert(1)> ![i](https://evil.example/leak.png) ![j](x" onerror="alert(1))
[k](https://e.org/"onmouseover="alert(1)) [l](java\nscript:alert(1)) [m](blob:https://e.org/1)

```html "><script>alert(1)</script>
</code></pre><script>window.pwned = 1</script>
```

| <img src=x onerror=alert(1)> | [n](javascript:alert(1)) |
|---|---|
| <iframe src="https://evil.example"></iframe> | <style>*{display:none}</style> |

- <a href="javascript:alert(1)">o</a>
> <form action="https://evil.example"><input name=p></form>

# <math><mtext></mtext></math>
"""


def test_nothing_in_an_answer_runs_or_loads(page: Page, fake: FakeServer) -> None:
    for fields in (
        {"content": HOSTILE},
        {"reasoning_content": HOSTILE, "content": "ok"},
        {"tool_calls": [{"index": 0, "id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}]},
    ):
        fake.says(delta(**fields), end())
        page.get_by_role("button", name="New conversation").click()
        send(page, HOSTILE)
        expect(page.locator(".figures span")).to_have_count(4)
        for summary in page.locator("summary:visible").all():
            summary.click()
    page.evaluate("() => document.querySelectorAll('.conversation').forEach((one) => one.click())")
    dangerous = "#app :is(script, img, iframe, style, form form, math, object, embed, link, base, meta)"
    assert page.locator(dangerous).count() == 0
    assert page.evaluate("window.pwned") is None
    page.locator(".conversation").last.click()
    expect(page.locator(".answer a").first).to_be_visible()
    links = page.locator(".answer a").evaluate_all("links => links.map((a) => [a.protocol, a.rel, a.target])")
    assert links and all(
        [protocol in ("http:", "https:", "mailto:"), rel, target]
        == [True, "noopener noreferrer nofollow", "_blank"]
        for protocol, rel, target in links
    )
    handlers = """() => [...document.querySelectorAll("#app *")].flatMap((node) =>
      [...node.attributes].map((one) => one.name)).filter((name) => name.startsWith("on"))"""
    assert page.evaluate(handlers) == []


def test_the_policy_stops_what_would_get_through(page: Page, watch: Watch) -> None:
    tries = """() => {
      const blocked = [];
      for (const [name, act] of Object.entries({
        html: () => { document.createElement("div").innerHTML = "<b>x</b>"; },
        script: () => { document.createElement("script").text = "window.pwned = 1"; },
        code: () => { setTimeout("window.pwned = 1", 0); },
      })) {
        try { act(); } catch (error) { blocked.push([name, error.name]); }
      }
      return blocked;
    }"""
    assert page.evaluate(tries) == [["html", "TypeError"], ["script", "TypeError"], ["code", "TypeError"]]
    assert watch.faults and all("requires 'Trusted" in fault for fault in watch.faults)
    watch.faults.clear()


SAMPLE = (
    "\n\n".join(CASES)
    + "\n\n"
    + HOSTILE
    + "\npara\n1. one\n2. two\n\n2. three\n- x\n\n  y\n\nz\n| a |\n|---|x\n```\nopen | fence\n- a\n"
)


def test_cuts_of_a_stream_do_not_matter(page: Page) -> None:
    whole = render(page, SAMPLE)
    assert render(page, SAMPLE, tuple(range(len(SAMPLE)))) == whole
    chance = random.Random(1)
    for _ in range(40):
        parts = chance.sample(SAMPLE.split("\n"), 12)
        text = "\n".join(parts)
        cuts = tuple(sorted(chance.sample(range(len(text)), min(60, len(text)))))
        assert render(page, text, cuts) == render(page, text), text


def test_finished_blocks_keep_their_elements(page: Page) -> None:
    kept = """async () => {
      const { MarkdownView } = await import("/web/js/markdown/render.js");
      const box = document.createElement("div");
      const view = new MarkdownView(box);
      view.update("one\\n\\ntwo\\n\\n```\\ncode\\n");
      const before = [...box.children];
      view.update("one\\n\\ntwo\\n\\n```\\ncode\\nmore\\n```\\nthree");
      return [...box.children].map((node, index) => node === before[index]);
    }"""
    assert page.evaluate(kept) == [True, True, True, False]


UNITS = [
    "*a ", "**a", "a*", "*a**b***", "_a_ ", "*a b_ ", "~~", "`", "``a` ", "[", "![", "[a](", "[a](b",
    "[a](u) ", "<", "&", "$$ a ", "\\(", "\\[", "|", "# ", "#", "---", "- ", "1. ", "> ", ">\n", "https://",
    "http://a)", "```\n",
    "| a |\n|-|\n", "  - a\n", "- a\n\n",
]  # fmt: skip
PAIRS = [("*a ", "a* "), ("**a ", "a** "), ("[", "](a)"), *((unit, "") for unit in UNITS)]
"""What is repeated, and what is repeated behind that."""

COST = """async ([head, tail]) => {
  const { parseBlocks } = await import("/web/js/markdown/blocks.js");
  const { parseInline } = await import("/web/js/markdown/inline.js");
  const once = (text) => {
    const start = performance.now();
    parseBlocks(text);
    parseInline(text);
    return performance.now() - start;
  };
  const text = (count) => head.repeat(count) + tail.repeat(count) + "\\nx";
  let ratio = Infinity;
  for (let round = 0; round < 5 && ratio > 6; round += 1) {
    let parts = 0;
    for (let part = 0; part < 16; part += 1) {
      parts += once(text(1000));
    }
    ratio = once(text(16000)) / Math.max(parts, 10);
  }
  return ratio;
}"""


def test_repeated_markers_cost_time_in_proportion(page: Page) -> None:
    """A text costs about as much as its 16 parts, where the square would cost 16 times as much. What is done
    within 10 ms is not measured well, and counts as that."""
    for pair in PAIRS:
        assert page.evaluate(COST, pair) <= 6, pair


def test_nesting_ends_somewhere(page: Page) -> None:
    for text in (
        "> " * 3000 + "x",
        "- " * 3000 + "x",
        "*a " * 3000 + "a* " * 3000,
        "![" * 3000 + "a](https://e.org)" * 3000,
    ):
        assert "x" in render(page, text) or "a" in render(page, text)
