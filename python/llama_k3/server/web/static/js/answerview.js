// How an answer is shown: reasoning, text, tool calls, trouble, and the line of numbers and buttons below.

import { copyButton, count, el, icon, iconButton, plural, setText } from "./dom.js";
import { MarkdownView } from "./markdown/render.js";
import { ToolCalls } from "./toolcalls.js";
import { reasoningTokens } from "./wire.js";

const FINISH_NOTES = { length: "Ended by the token limit." };

class ReasoningView {
  constructor() {
    this.label = el("span");
    this.body = el("div", { class: "markdown reasoning-text" });
    this.view = new MarkdownView(this.body);
    this.text = "";
    this.node = el(
      "details",
      { class: "reasoning", hidden: true, ontoggle: () => this.render() },
      el("summary", {}, icon("chevron"), icon("thought"), this.label),
      this.body,
    );
  }

  update(answer, live) {
    const thinking = live && !answer.content && !answer.toolCalls.length;
    const tokens = plural(reasoningTokens(answer), "token");
    this.node.hidden = !answer.reasoning;
    this.node.classList.toggle("live", thinking);
    setText(this.label, thinking ? `Thinking… ${tokens}` : `Thought for ${tokens}`);
    this.text = answer.reasoning;
    this.render();
  }

  render() {
    if (this.node.open) {
      this.view.update(this.text);
    }
  }
}

/** What the server does before the first token: waiting, then reading the prompt. */
class ProgressView {
  constructor() {
    this.label = el("span");
    this.bar = el("progress", { max: "1", "aria-label": "Prompt read" });
    this.node = el("div", { class: "progress" }, this.label, this.bar);
  }

  update(answer, live) {
    const waiting = live && !answer.content && !answer.reasoning && !answer.toolCalls.length;
    this.node.hidden = !waiting;
    const { total, cache, processed } = answer.progress ?? {};
    this.bar.hidden = !total;
    if (total) {
      setText(this.label, `Reading the prompt: ${count(processed)} of ${plural(total, "token")}`);
      this.bar.value = total > cache ? (processed - cache) / (total - cache) : 1;
    } else {
      setText(this.label, "Waiting for the server…");
    }
  }
}

/** Speed and cache in words: [text, explanation] each. */
function figures({ timings, usage }) {
  const shown = [];
  if (timings) {
    if (timings.predicted_n > 1 && timings.predicted_per_second > 0) {
      shown.push([`${timings.predicted_per_second.toFixed(1)} tokens/s`, "Speed of the answer"]);
    }
    shown.push([plural(timings.predicted_n, "token"), "Length of the answer, with its reasoning"]);
    shown.push([`${count(timings.cache_n)} cached`, "Tokens of the prompt that were known already"]);
    shown.push([`${count(timings.prompt_n)} read`, "Tokens of the prompt that were read now"]);
  } else if (usage) {
    shown.push([plural(usage.completion_tokens, "token"), "Length of the answer, with its reasoning"]);
  }
  return shown;
}

export class AnswerView {
  /** `actions`: {regenerate(), answerTools(texts)}. */
  constructor(answer, actions) {
    this.answer = answer;
    this.reasoning = new ReasoningView();
    this.progress = new ProgressView();
    this.content = el("div", { class: "markdown" });
    this.markdown = new MarkdownView(this.content);
    this.calls = new ToolCalls(actions.answerTools);
    this.note = el("p", { class: "answer-note", hidden: true });
    this.trouble = el("div", { class: "trouble", hidden: true });
    this.figures = el("span", { class: "figures" });
    this.copy = copyButton("Copy the answer", () => this.answer.content);
    this.regenerate = iconButton("retry", "Regenerate", actions.regenerate);
    this.foot = el("div", { class: "message-foot" }, this.copy, this.regenerate, this.figures);
    this.retry = el("button", { type: "button", class: "button", onclick: actions.regenerate }, "Try again");
    this.node = el(
      "article",
      { class: "message answer" },
      el("h2", { class: "visually-hidden" }, "Answer"),
      this.reasoning.node,
      this.progress.node,
      this.content,
      this.calls.node,
      this.note,
      this.trouble,
      this.foot,
    );
  }

  /** `results`: tool message or null for each call. `last`: no message follows. */
  update(results, last) {
    const { answer } = this;
    const live = answer.state === "streaming";
    this.node.setAttribute("aria-busy", String(live));
    this.reasoning.update(answer, live);
    this.progress.update(answer, live);
    this.markdown.update(answer.content);
    this.calls.update(answer.toolCalls, results, live, last);
    const note = answer.state === "stopped" ? "Stopped." : (FINISH_NOTES[answer.finish] ?? "");
    this.note.hidden = live || !note;
    setText(this.note, note);
    this.showTrouble(answer, !live && answer.error, last);
    this.copy.hidden = !answer.content;
    this.regenerate.hidden = live || !last || Boolean(answer.error);
    this.showFigures(live && !answer.content && !answer.reasoning ? [] : figures(answer));
  }

  showFigures(shown) {
    while (this.figures.children.length > shown.length) {
      this.figures.lastChild.remove();
    }
    shown.forEach(([text, title], index) => {
      const span = this.figures.children[index] ?? this.figures.appendChild(el("span"));
      span.title = title;
      setText(span, text);
    });
    this.foot.hidden = shown.length === 0 && this.regenerate.hidden && this.copy.hidden;
  }

  showTrouble(answer, failed, last) {
    if (failed && this.trouble.hidden) {
      this.trouble.replaceChildren(
        icon("warning"),
        el("div", {}, el("strong", {}, answer.error.title), el("p", {}, answer.error.text)),
        this.retry,
      );
    }
    this.trouble.hidden = !failed;
    this.retry.hidden = !last;
  }
}
