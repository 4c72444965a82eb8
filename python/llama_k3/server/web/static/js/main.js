// Ties the page together: composer, thread, list of conversations, settings, keys.

import { ApiError, fetchProps } from "./api.js";
import { Chat } from "./chat.js";
import { askKey, openSettings } from "./dialogs.js";
import { announce, byId, count, setText } from "./dom.js";
import { applyTheme, loadSettings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Store, isConversationKey } from "./store.js";
import { Thread } from "./thread.js";
import { contextTokens } from "./wire.js";

const settings = loadSettings();
const store = new Store();
const field = byId("composer-text");
let props = null;
let frame = null;

const chat = new Chat(store, {
  settings: () => settings,
  askKey: async () => {
    const entered = await askKey();
    field.focus();
    return entered;
  },
  opened: showConversation,
  renamed: showTitle,
  changed: showChange,
  streamed: () => {
    frame ??= requestAnimationFrame(showFrame);
  },
  ended: showEnd,
  noticed: showNotice,
});
const thread = new Thread({
  edit: (message, text) => chat.edit(message, text),
  regenerate: (message) => chat.regenerate(message),
  answerTools: (message, texts) => chat.answerTools(message, texts),
});
const sidebar = new Sidebar(chat, store);

function showFrame() {
  frame = null;
  thread.update(chat.messages);
  showContext();
}

function showTitle() {
  const { title } = chat.conversation;
  setText(byId("title"), title || "New conversation");
  document.title = title ? `${title} · llama-k3` : "llama-k3";
}

function showState() {
  showTitle();
  byId("send").hidden = chat.isBusy;
  byId("stop").hidden = !chat.isBusy;
  sidebar.update();
  showContext();
}

function showConversation() {
  thread.show(chat.messages);
  thread.toEnd();
  showState();
  field.focus();
}

function showChange() {
  thread.show(chat.messages);
  if (chat.isBusy) {
    thread.toEnd();
    announce("Waiting for the answer.");
    if (!byId("thread").contains(document.activeElement)) {
      field.focus();
    }
  }
  showState();
}

function showEnd(answer, conversation) {
  if (conversation === chat.conversation) {
    thread.update(chat.messages);
    const calls = answer.toolCalls.map((call) => `The model calls the tool ${call.name}.`).join(" ");
    const trouble = answer.error ? `${answer.error.title}. ${answer.error.text}` : "";
    announce([answer.content.slice(0, 2000), calls, trouble].filter((text) => text).join(" ") || "No answer.");
    if (props === null && answer.state === "done") {
      loadProps();
    }
  }
  showState();
}

function showNotice(sentence) {
  const notice = byId("notice");
  notice.hidden = !sentence;
  setText(notice, sentence);
}

function showContext() {
  const limit = props?.default_generation_settings?.n_ctx;
  const answer = chat.messages.findLast((message) => message.role === "assistant" && contextTokens(message) !== null);
  const used = answer ? contextTokens(answer) : 0;
  const meter = byId("context");
  meter.hidden = !limit;
  if (limit) {
    const share = Math.min(1, used / limit);
    byId("context-bar").setAttribute("aria-valuenow", String(used));
    byId("context-bar").setAttribute("aria-valuemax", String(limit));
    byId("context-bar").setAttribute("aria-valuetext", `${count(used)} of ${count(limit)} tokens`);
    byId("context-fill").style.width = `${share * 100}%`;
    meter.classList.toggle("high", share > 0.85);
    setText(byId("context-text"), `${count(used)} / ${count(limit)}`);
    meter.title = `Context: ${count(used)} of ${count(limit)} tokens used`;
  }
}

async function loadProps() {
  for (;;) {
    try {
      props = await fetchProps();
      break;
    } catch (error) {
      const refused = error instanceof ApiError && error.status === 401;
      if (!refused || !(await askKey())) {
        return;
      }
    }
  }
  const name = props.model_alias || (props.model_path ?? "").split("/").at(-1);
  setText(byId("model-name"), name ? `${name} answers on this server. Conversations stay in this browser.` : "");
  showContext();
}

function fitField() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (field.value.trim() && !chat.isBusy) {
    const text = field.value;
    field.value = "";
    fitField();
    chat.send(text);
  }
});
field.addEventListener("input", fitField);
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});
byId("stop").addEventListener("click", () => {
  chat.stop();
  field.focus();
});
byId("new-chat").addEventListener("click", () => {
  chat.create();
  sidebar.setOpen(false);
  field.focus();
});
byId("open-settings").addEventListener("click", async () => {
  const saved = await openSettings(settings, props?.default_generation_settings?.params);
  if (saved && props === null) {
    loadProps();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) {
    return;
  }
  if (sidebar.open) {
    sidebar.setOpen(false);
  } else {
    chat.stop();
  }
});
addEventListener("storage", (event) => {
  if (isConversationKey(event.key)) {
    store.reload(new Set([chat.conversation.id, ...chat.runs.keys()]));
    sidebar.update();
  }
});
addEventListener("pagehide", () => {
  if (chat.isBusy) {
    chat.save(chat.conversation);
  }
});

applyTheme(settings.theme);
const latest = store.list()[0];
if (latest) {
  chat.open(latest);
} else {
  showConversation();
}
loadProps();
