// The list of conversations, and the drawer it becomes on a narrow screen.

import { confirm } from "./dialogs.js";
import { byId, download, el, iconButton } from "./dom.js";

const NARROW = matchMedia("(max-width: 800px)");

function exportName(title) {
  const words = title.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["conversation"];
  return `${words.join("-").slice(0, 40)}.json`;
}

export class Sidebar {
  constructor(chat, store) {
    this.chat = chat;
    this.store = store;
    this.list = byId("conversation-list");
    this.open = false;
    byId("open-sidebar").addEventListener("click", () => this.setOpen(true));
    byId("close-sidebar").addEventListener("click", () => this.setOpen(false));
    byId("backdrop").addEventListener("click", () => this.setOpen(false));
    byId("export-all").addEventListener("click", () => {
      download("conversations.json", JSON.stringify(this.store.list(), null, 2), "application/json");
    });
    NARROW.addEventListener("change", () => this.setOpen(false));
    this.setOpen(false);
  }

  /** Open or close the drawer; where there is room the list is always shown. */
  setOpen(open) {
    const wasOpen = this.open;
    this.open = open && NARROW.matches;
    byId("sidebar").classList.toggle("open", this.open);
    byId("sidebar").inert = NARROW.matches && !this.open;
    byId("main").inert = this.open;
    byId("backdrop").hidden = !this.open;
    byId("open-sidebar").setAttribute("aria-expanded", String(this.open));
    if (this.open) {
      byId("new-chat").focus();
    } else if (wasOpen) {
      byId("open-sidebar").focus();
    }
  }

  /** Make the list anew, with the focus where it was; but not under a title that is being changed. */
  update() {
    if (this.list.querySelector("form")) {
      return;
    }
    const focused = this.list.contains(document.activeElement) ? document.activeElement.id : null;
    this.list.replaceChildren(...this.store.list().map((conversation) => this.row(conversation)));
    if (focused) {
      byId(focused)?.focus();
    }
  }

  row(conversation) {
    const { id } = conversation;
    const current = id === this.chat.conversation.id;
    const title = conversation.title || "Untitled";
    return el(
      "li",
      { class: current ? "current" : null },
      el("button", {
        type: "button",
        class: "conversation",
        id: `open-${id}`,
        "aria-current": current ? "true" : null,
        title,
        onclick: () => {
          this.chat.open(conversation);
          this.setOpen(false);
        },
      }, this.chat.runs.has(id) ? el("span", { class: "dot", role: "img", "aria-label": "answering" }) : null,
      el("span", { class: "conversation-title", dir: "auto" }, title)),
      this.rowButtons(conversation, title),
    );
  }

  rowButtons(conversation, title) {
    const button = (name, label, act) =>
      iconButton(name, `${label} ${title}`, act, { id: `${label}-${conversation.id}` });
    const save = () => download(exportName(title), JSON.stringify(conversation, null, 2), "application/json");
    return el(
      "span",
      { class: "row-buttons" },
      button("edit", "Rename", () => this.rename(conversation)),
      button("download", "Export", save),
      button("trash", "Delete", () => this.remove(conversation)),
    );
  }

  /** Put a form in the place of the conversation's row. Leaving it keeps the title, Escape does not. */
  rename(conversation) {
    const field = el("input", { "aria-label": "Title", value: conversation.title, maxlength: "200" });
    const place = byId(`Rename-${conversation.id}`).closest("li");
    const finish = (keep, refocus) => {
      if (!form.isConnected || finish.done) {
        return;
      }
      finish.done = true; // taking the form away takes the focus, which would finish again
      if (keep && field.value.trim()) {
        this.chat.rename(conversation, field.value.trim());
      }
      // Only this row changes, so that a click on another one that took the focus arrives there.
      place.replaceWith(this.row(conversation));
      if (refocus) {
        byId(`Rename-${conversation.id}`).focus();
      }
    };
    const form = el("form", {
      class: "rename",
      onsubmit: (event) => {
        event.preventDefault();
        finish(true, true);
      },
      onkeydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          finish(false, true);
        }
      },
      onfocusout: () => finish(true, false),
    }, field);
    place.replaceChildren(form);
    field.select();
  }

  async remove(conversation) {
    const title = conversation.title || "Untitled";
    if (await confirm("Delete this conversation?", `“${title}” is removed from this browser for good.`, "Delete")) {
      this.chat.remove(conversation.id);
      this.update();
      byId("new-chat").focus();
    }
  }
}
