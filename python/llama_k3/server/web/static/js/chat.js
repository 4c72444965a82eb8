// Conversations and the answers being made for them: sending, stopping, editing, regenerating.

import { ApiError, describeError, streamChat } from "./api.js";
import { requestFields } from "./settings.js";
import { newConversation } from "./store.js";
import { applyChunk, isEmptyAnswer, newAnswer, requestBody } from "./wire.js";

const SAVE_MS = 1000; // how often an answer that streams in is kept

/**
 * `hooks`: settings() gives the settings; askKey() gives whether there is a new key; opened() another
 * conversation is shown; renamed() a title changed; changed() messages came or went; streamed() the last answer grew; ended(answer, conversation);
 * noticed(sentence), an empty one when it is past.
 */
export class Chat {
  constructor(store, hooks) {
    this.store = store;
    this.hooks = hooks;
    this.runs = new Map(); // id of a conversation -> its AbortController
    this.conversation = newConversation();
  }

  get messages() {
    return this.conversation.messages;
  }

  get isBusy() {
    return this.runs.has(this.conversation.id);
  }

  open(conversation) {
    this.conversation = conversation;
    this.hooks.opened();
  }

  create() {
    this.open(newConversation());
  }

  remove(id) {
    this.runs.get(id)?.abort();
    this.store.remove(id);
    if (id === this.conversation.id) {
      this.create();
    }
  }

  rename(conversation, title) {
    conversation.title = title;
    this.save(conversation);
    this.hooks.renamed();
  }

  stop() {
    this.runs.get(this.conversation.id)?.abort();
  }

  send(text) {
    if (this.isBusy) {
      return;
    }
    if (this.messages.length && isEmptyAnswer(this.messages.at(-1))) {
      this.messages.pop();
    }
    this.conversation.title ||= text.trim().split("\n")[0].slice(0, 60);
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  /** Put another text in the place of a message; what followed it goes. */
  edit(message, text) {
    this.continueFrom(message, [{ role: "user", content: text }]);
  }

  /** Make this answer, and what followed it, anew. */
  regenerate(message) {
    this.continueFrom(message, []);
  }

  /** Results for the calls of an answer that have none yet, in their order. */
  answerTools(message, texts) {
    const given = new Set(this.messages.filter(({ role }) => role === "tool").map(({ id }) => id));
    const missing = message.toolCalls.filter((call) => !given.has(call.id));
    if (this.isBusy || message !== this.messages.at(-1)) {
      return;
    }
    missing.forEach((call, index) => {
      this.messages.push({ role: "tool", id: call.id, name: call.name, content: texts[index] ?? "" });
    });
    this.answer();
  }

  continueFrom(message, replacement) {
    if (this.isBusy) {
      this.hooks.noticed("An answer is being made. Stop it first.");
      return;
    }
    const index = this.messages.indexOf(message);
    this.messages.splice(index, Infinity, ...replacement);
    this.answer();
  }

  save(conversation) {
    const notice = this.store.save(conversation);
    if (notice) {
      this.hooks.noticed(notice);
    }
  }

  /** Ask the server for the next answer of the shown conversation. */
  async answer() {
    const { conversation } = this;
    const abort = new AbortController();
    const answer = newAnswer();
    const sent = [...conversation.messages];
    this.hooks.noticed("");
    conversation.messages.push(answer);
    conversation.updated = Date.now();
    this.runs.set(conversation.id, abort);
    this.save(conversation);
    this.hooks.changed();
    try {
      await this.stream(conversation, sent, answer, abort.signal);
      answer.state = "done";
    } catch (error) {
      answer.state = abort.signal.aborted ? "stopped" : "failed";
      answer.error = abort.signal.aborted ? null : describeError(error);
    }
    this.runs.delete(conversation.id);
    if (this.store.has(conversation)) {
      this.save(conversation);
    }
    this.hooks.ended(answer, conversation);
  }

  async stream(conversation, messages, answer, signal) {
    const settings = this.hooks.settings();
    const body = requestBody(messages, settings.system, requestFields(settings));
    let saved = Date.now();
    for (;;) {
      try {
        for await (const chunk of streamChat(body, signal)) {
          applyChunk(answer, chunk);
          if (conversation === this.conversation) {
            this.hooks.streamed();
          }
          if (Date.now() - saved > SAVE_MS && this.store.has(conversation)) {
            this.save(conversation);
            saved = Date.now();
          }
        }
        return;
      } catch (error) {
        const refused = error instanceof ApiError && error.status === 401 && !signal.aborted;
        if (!refused || !(await this.hooks.askKey())) {
          throw error;
        }
      }
    }
  }
}
