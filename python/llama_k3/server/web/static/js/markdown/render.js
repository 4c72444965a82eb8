// Shows markdown as it streams in: only blocks whose text changed are made anew.

import { copyButton, el } from "../dom.js";
import { parseBlocks } from "./blocks.js";
import { parseInline } from "./inline.js";

function inlineNode(node) {
  if (typeof node === "string") {
    return document.createTextNode(node);
  }
  switch (node.type) {
    case "break":
      return el("br");
    case "code":
      return el("code", {}, node.text);
    case "math":
      return el("code", { class: "math" }, node.text);
    case "link":
      return el(
        "a",
        { href: node.address, target: "_blank", rel: "noopener noreferrer nofollow", title: node.address },
        ...node.children.map(inlineNode),
      );
    default:
      return el(node.type, {}, ...node.children.map(inlineNode));
  }
}

function inline(text) {
  return parseInline(text).map(inlineNode);
}

function codeBlock(block) {
  const code = el("code", {}, document.createTextNode(block.text));
  return el(
    "div",
    { class: "code-block" },
    el("div", { class: "code-head" }, el("span", {}, block.language || "text"),
      copyButton("Copy code", () => code.textContent)),
    el("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${block.language || "text"}` }, code),
  );
}

function table(block) {
  const row = (cells, tag) =>
    el("tr", {}, ...cells.map((cell, column) => el(tag, { class: `align-${block.align[column]}` }, ...inline(cell))));
  return el(
    "div",
    { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row(block.header, "th")), el("tbody", {}, ...block.rows.map((cells) => row(cells, "td")))),
  );
}

function list(block) {
  const items = block.items.map((item) => {
    const box = item.done === null ? null
      : el("input", { type: "checkbox", disabled: true, checked: item.done, "aria-label": item.done ? "done" : "open" });
    return el("li", { class: box ? "task" : null }, box, ...item.children.map(blockNode));
  });
  const start = block.ordered && block.start !== 1 ? block.start : null;
  return el(block.ordered ? "ol" : "ul", { class: block.loose ? null : "tight", start }, ...items);
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page has h1, the answer h2.
      return el(`h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}`, dir: "auto" }, ...inline(block.text));
    case "code":
      return codeBlock(block);
    case "math":
      return el("pre", { class: "math", tabindex: "0", role: "region", "aria-label": "Formula" }, block.text);
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...block.children.map(blockNode));
    case "list":
      return list(block);
    case "table":
      return table(block);
    default:
      return el("p", { dir: "auto" }, ...inline(block.text));
  }
}

/** Put more text into a code block that is shown already; false where that is not all that has changed. */
function extendCode(shown, block) {
  const grows = shown.block.type === "code" && block.type === "code" && shown.block.language === block.language &&
    block.text.startsWith(shown.block.text);
  if (grows) {
    shown.node.querySelector("pre > code").firstChild.appendData(block.text.slice(shown.block.text.length));
  }
  return grows;
}

/** Markdown in an element. `update` may be called for every frame with the whole text so far. */
export class MarkdownView {
  constructor(container) {
    this.container = container;
    this.text = "";
    this.shown = []; // {block, node, at: first character of the block}
  }

  update(source) {
    const text = source.replace(/\r\n?/g, "\n");
    if (text === this.text) {
      return;
    }
    // Text behind the last block can change that one and, by a line that is not whole yet, the one before it.
    const keep = text.startsWith(this.text) ? Math.max(0, this.shown.length - 2) : 0;
    const from = keep > 0 ? this.shown[keep].at : 0;
    const blocks = parseBlocks(text.slice(from));
    blocks.forEach((block, index) => this.show(keep + index, block, from + block.begin));
    for (const { node } of this.shown.splice(keep + blocks.length)) {
      node.remove();
    }
    this.text = text;
  }

  show(index, block, at) {
    const shown = this.shown[index];
    if (shown && ((shown.block.source === block.source && shown.block.type === block.type) || extendCode(shown, block))) {
      this.shown[index] = { block, node: shown.node, at };
      return;
    }
    const node = blockNode(block);
    if (shown) {
      shown.node.replaceWith(node);
    } else {
      this.container.append(node);
    }
    this.shown[index] = { block, node, at };
  }
}
