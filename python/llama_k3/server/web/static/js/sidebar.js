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
    this.renaming = null; // id of the conversation whose title is being changed
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

  /** Make the list anew, with the focus where it was. */
  update() {
    const focused = this.list.contains(document.activeElement) ? document.activeElement.id : null;
    this.list.replaceChildren(...this.store.list().map((conversation) => this.row(conversation)));
    if (focused) {
      byId(focused)?.focus();
    }
  }

  row(conversation) {
    const { id } = conversation;
    const current = id === this.chat.conversation.id;
    if (this.renaming === id) {
      return el("li", {}, this.renameForm(conversation));
    }
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
      el("span", { class: "row-buttons" },
        iconButton("edit", `Rename ${title}`, () => this.rename(id), { id: `rename-${id}` }),
        iconButton("download", `Export ${title}`, () => {
          download(exportName(title), JSON.stringify(conversation, null, 2), "application/json");
        }, { id: `export-${id}` }),
        iconButton("trash", `Delete ${title}`, () => this.remove(conversation), { id: `delete-${id}` })),
    );
  }

  rename(id) {
    this.renaming = id;
    this.update();
    byId("rename-field")?.select();
  }

  renameForm(conversation) {
    const field = el("input", { id: "rename-field", "aria-label": "Title", value: conversation.title, maxlength: "200" });
    const finish = (keep) => {
      if (this.renaming !== conversation.id) {
        return;
      }
      this.renaming = null;
      if (keep && field.value.trim()) {
        this.chat.rename(conversation, field.value.trim());
      }
      this.chat.hooks.changed();
      byId(`rename-${conversation.id}`)?.focus();
    };
    return el("form", {
      class: "rename",
      onsubmit: (event) => {
        event.preventDefault();
        finish(true);
      },
      onkeydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          finish(false);
        }
      },
      onfocusout: () => finish(true),
    }, field);
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
