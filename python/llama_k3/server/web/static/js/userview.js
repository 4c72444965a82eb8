// How a message of the user is shown, and how it is edited.

import { copyButton, el, iconButton } from "./dom.js";

export class UserView {
  /** `actions`: {edit(text)}. */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.text = el("div", { class: "bubble", dir: "auto" }, message.content);
    this.editButton = iconButton("edit", "Edit", () => this.open());
    this.foot = el("div", { class: "message-foot" },
      copyButton("Copy the message", () => this.message.content), this.editButton);
    this.form = null;
    this.node = el("article", { class: "message user" }, el("h2", { class: "visually-hidden" }, "You"), this.text, this.foot);
  }

  open() {
    const field = el("textarea", { "aria-label": "Edit the message", rows: String(Math.min(12, this.message.content.split("\n").length + 1)) });
    field.value = this.message.content;
    this.form = el(
      "form",
      {
        class: "edit",
        onsubmit: (event) => {
          event.preventDefault();
          if (field.value.trim()) {
            this.actions.edit(field.value);
          }
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            this.close();
          } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            this.form.requestSubmit();
          }
        },
      },
      field,
      el("p", { class: "help" }, "What follows this message is answered anew."),
      el("div", { class: "edit-buttons" },
        el("button", { type: "button", class: "button", onclick: () => this.close() }, "Cancel"),
        el("button", { type: "submit", class: "button primary" }, "Send")),
    );
    this.text.hidden = true;
    this.foot.hidden = true;
    this.node.append(this.form);
    field.focus();
  }

  close() {
    this.form?.remove();
    this.form = null;
    this.text.hidden = false;
    this.foot.hidden = false;
    this.editButton.focus();
  }

  update() {}
}
