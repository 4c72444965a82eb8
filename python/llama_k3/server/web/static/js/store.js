// Conversations in the browser's storage: one entry each, so that two tabs do not overwrite one another's.

const PREFIX = "llama-k3.conversation.";
const MAX_CONVERSATIONS = 200;
const MAX_CHARACTERS = 2_000_000; // of one conversation; browsers give a site about 5 million
const CUT = { title: "Connection lost", text: "The page was left while the answer came. What came until then is kept." };
const NOT_KEPT = "This conversation cannot be kept in this browser. Export it before you leave.";

/** A message as it may be used, or null where the entry is not one. */
function checkedMessage(message) {
  if (typeof message?.content !== "string" || !["user", "assistant", "tool"].includes(message.role)) {
    return null;
  }
  if (message.role !== "assistant") {
    return message;
  }
  const cut = message.state === "streaming" ? { state: "failed", error: CUT } : {};
  const calls = (Array.isArray(message.toolCalls) ? message.toolCalls : []).map((call) => ({
    id: String(call?.id),
    name: String(call?.name),
    arguments: String(call?.arguments),
  }));
  return { ...message, reasoning: String(message.reasoning ?? ""), toolCalls: calls, ...cut };
}

function checkedConversation(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value?.id !== "string" || !Array.isArray(value.messages)) {
    return null;
  }
  return {
    id: value.id,
    title: String(value.title ?? ""),
    updated: Number(value.updated) || 0,
    messages: value.messages.map(checkedMessage).filter((message) => message),
  };
}

export function newConversation() {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", updated: Date.now(), messages: [] };
}

export class Store {
  constructor() {
    this.conversations = new Map();
    this.reload();
  }

  /** Read everything again; conversations in `keep` (ids) stay the objects they are. */
  reload(keep = new Set()) {
    const found = new Map();
    try {
      for (const name of Object.keys(localStorage).filter((key) => key.startsWith(PREFIX))) {
        const conversation = checkedConversation(localStorage.getItem(name));
        if (conversation) {
          found.set(conversation.id, conversation);
        }
      }
    } catch {
      // No storage: what is in memory is all there is.
      return;
    }
    for (const id of keep) {
      if (this.conversations.has(id)) {
        found.set(id, this.conversations.get(id));
      }
    }
    this.conversations = found;
  }

  /** Whether this very object is kept, and has not been removed since. */
  has(conversation) {
    return this.conversations.get(conversation.id) === conversation;
  }

  /** All, the latest first. */
  list() {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  /** Keep a conversation. Gives a sentence for the user when others had to go for it or it could not be kept. */
  save(conversation) {
    this.conversations.set(conversation.id, conversation);
    const text = JSON.stringify(conversation);
    let removed = 0;
    while (text.length <= MAX_CHARACTERS) {
      const oldest = this.list().filter((other) => other !== conversation).at(-1);
      try {
        if (this.conversations.size > MAX_CONVERSATIONS && oldest) {
          throw new DOMException("too many", "QuotaExceededError");
        }
        localStorage.setItem(PREFIX + conversation.id, text);
        return removed ? `The browser's storage is full: the ${removed} oldest conversations were removed.` : null;
      } catch (error) {
        if (error.name !== "QuotaExceededError" || !oldest) {
          break;
        }
        this.remove(oldest.id);
        removed += 1;
      }
    }
    return NOT_KEPT;
  }

  remove(id) {
    this.conversations.delete(id);
    try {
      localStorage.removeItem(PREFIX + id);
    } catch {
      // No storage: nothing to remove.
    }
  }
}

/** Whether a storage event is about conversations. */
export function isConversationKey(name) {
  return name === null || name.startsWith(PREFIX);
}
