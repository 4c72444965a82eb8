// The tool calls of an answer: name, arguments, result, and the form for results that are still missing.

import { copyButton, el, icon, setText } from "./dom.js";
import { prettyJson } from "./json.js";

class CallCard {
  constructor() {
    this.name = el("span", { class: "call-name" });
    this.state = el("span", { class: "call-state" });
    this.args = el("pre", { tabindex: "0", role: "region", "aria-label": "Arguments" });
    this.result = el("div", { class: "call-result" });
    this.shown = null;
    this.node = el(
      "div",
      { class: "call" },
      el("div", { class: "call-head" }, icon("tool"), this.name, this.state,
        copyButton("Copy arguments", () => this.args.textContent)),
      this.args,
      this.result,
    );
  }

  /** `result`: the tool message, or null. `asks`: whether to show the field for it. */
  update(call, result, asks, live) {
    setText(this.name, call.name || "a tool");
    setText(this.args, live ? call.arguments : prettyJson(call.arguments));
    setText(this.state, live ? "being called" : result ? "answered" : "waiting for a result");
    const kind = result ? `result ${result.content}` : asks ? "field" : "";
    if (kind === this.shown) {
      return;
    }
    this.shown = kind;
    this.field = null;
    if (result) {
      this.result.replaceChildren(
        el("div", { class: "call-label" }, "Result"),
        el("pre", { tabindex: "0", role: "region", "aria-label": "Result" }, prettyJson(result.content)),
      );
    } else if (asks) {
      this.field = el("textarea", { rows: "2", class: "code-input", spellcheck: "false", placeholder: "Text or JSON" });
      this.result.replaceChildren(el("label", {}, `Result of ${call.name}`, this.field));
    } else {
      this.result.replaceChildren();
    }
  }
}

/** All calls of an answer. `send(results)` gets one text for each call without a result. */
export class ToolCalls {
  constructor(send) {
    this.cards = [];
    this.list = el("div", { class: "call-list" });
    this.submit = el("button", { type: "submit", class: "button primary", hidden: true }, "Send the result");
    this.node = el("form", {
      class: "calls",
      hidden: true,
      onsubmit: (event) => {
        event.preventDefault();
        send(this.cards.filter((card) => card.field).map((card) => card.field.value));
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          this.node.requestSubmit();
        }
      },
    }, this.list, this.submit);
  }

  /** `results`: one tool message or null for each call. `last`: nothing follows, so results may be entered. */
  update(calls, results, live, last) {
    this.node.hidden = calls.length === 0;
    calls.forEach((call, index) => {
      if (!this.cards[index]) {
        this.cards[index] = new CallCard();
        this.list.append(this.cards[index].node);
      }
      this.cards[index].update(call, results[index], last && !live, live);
    });
    const missing = this.cards.filter((card) => card.field).length;
    this.submit.hidden = missing === 0;
    setText(this.submit, missing > 1 ? "Send the results" : "Send the result");
  }
}
