// Requests to the server the page came from. All addresses are relative to the page, as it may lie under a prefix.

import { apiKey } from "./key.js";
import { eventData } from "./sse.js";

/** An answer of the server that is an error. `code`: the error object's, `details`: all of that object. */
export class ApiError extends Error {
  constructor(status, details) {
    super(details.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = details.code;
    this.details = details;
  }
}

/** The connection broke before the answer was whole. */
export class LostError extends Error {}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) {
    headers.Authorization = `Bearer ${apiKey()}`;
  }
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) {
      throw error;
    }
    throw new LostError("The server cannot be reached.");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new ApiError(response.status, body?.error ?? {});
  }
  return response;
}

/** The server's properties: n_ctx, defaults of sampling, and the model's name. */
export async function fetchProps() {
  const response = await request("props");
  return response.json();
}

/** The chunks of a streamed chat completion. Throws ApiError or LostError; ends after the server's [DONE]. */
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") {
        return;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) {
        throw new ApiError(chunk.error.status ?? 500, chunk.error);
      }
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) {
      throw error;
    }
    throw new LostError("The connection was lost while the answer came.");
  }
  throw new LostError("The connection was lost while the answer came.");
}

/** What went wrong, in words: {title, text}. */
export function describeError(error) {
  if (error instanceof LostError) {
    return { title: "Connection lost", text: `${error.message} What came until then is kept.` };
  }
  if (!(error instanceof ApiError)) {
    return { title: "Something went wrong in this page", text: String(error) };
  }
  if (error.code === "context_length_exceeded") {
    const { n_prompt_tokens: wanted, n_ctx: limit } = error.details;
    const counts = wanted && limit ? ` It has ${wanted} tokens; the server's context holds ${limit}.` : ` ${error.message}`;
    return {
      title: "This conversation is too long",
      text: `${counts.trim()} Shorten a message with Edit, or begin a new conversation.`,
    };
  }
  if (error.status === 401 || error.status === 403) {
    return { title: "The server refused", text: error.status === 401 ? "It needs a valid API key." : error.message };
  }
  if (error.status === 503 || error.status === 429) {
    return { title: "The server is busy", text: `${error.message} Try again in a moment.` };
  }
  if (error.status >= 500) {
    return { title: "The server failed", text: error.message };
  }
  return { title: "The server did not accept this request", text: error.message };
}
