// The messages of the shown conversation, and the scrolling of them.

import { AnswerView } from "./answerview.js";
import { byId } from "./dom.js";
import { UserView } from "./userview.js";

const NEAR_END = 60; // pixels: who is that close to the end follows it

/** The tool message for each call of the answer at `index`, or null. */
function resultsOf(messages, index) {
  const results = [];
  for (let at = index + 1; messages[at]?.role === "tool"; at += 1) {
    results.push(messages[at]);
  }
  return messages[index].toolCalls.map((call) => results.find((result) => result.id === call.id) ?? null);
}

export class Thread {
  /** `actions`: {edit(message, text), regenerate(message), answerTools(message, texts)}. */
  constructor(actions) {
    this.actions = actions;
    this.node = byId("thread");
    this.scroller = byId("scroller");
    this.jump = byId("jump");
    this.views = [];
    this.follows = true;
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.keepEnd()).observe(this.scroller);
  }

  /** Show these messages; those that are shown already keep their elements. */
  show(messages) {
    const visible = messages.filter((message) => message.role !== "tool");
    let same = 0;
    while (same < this.views.length && this.views[same].message === visible[same]) {
      same += 1;
    }
    this.views.splice(same).forEach(({ view }) => view.node.remove());
    for (const message of visible.slice(same)) {
      const view = this.viewOf(message);
      this.views.push({ message, view });
      this.node.append(view.node);
    }
    byId("empty").hidden = visible.length > 0;
    this.update(messages, 0);
  }

  /** Show what changed in the messages from `first` on. */
  update(messages, first = messages.length - 1) {
    for (let at = this.views.length - 1; at >= 0; at -= 1) {
      const { message, view } = this.views[at];
      const index = messages.lastIndexOf(message);
      if (index < first) {
        break;
      }
      view.update(message.role === "assistant" ? resultsOf(messages, index) : [], index === messages.length - 1);
    }
    this.keepEnd();
  }

  viewOf(message) {
    if (message.role === "user") {
      return new UserView(message, { edit: (text) => this.actions.edit(message, text) });
    }
    return new AnswerView(message, {
      regenerate: () => this.actions.regenerate(message),
      answerTools: (texts) => this.actions.answerTools(message, texts),
    });
  }

  toEnd() {
    this.follows = true;
    this.keepEnd();
  }

  keepEnd() {
    if (this.follows) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
    }
    this.jump.hidden = this.follows;
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.jump.hidden = this.follows;
  }
}
