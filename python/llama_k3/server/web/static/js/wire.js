// Between kept messages and the server's chat completions: what is sent, and how a chunk changes an answer.
//
// A kept message is {role: "user", content}, {role: "tool", id, name, content}, or an answer:
// {role: "assistant", content, reasoning, toolCalls: [{id, name, arguments}], state, finish, timings, usage,
//  progress, error}. state: "streaming", "done", "stopped" by the user, or "failed" with `error` {title, text}.

export function newAnswer() {
  return {
    role: "assistant",
    content: "",
    reasoning: "",
    toolCalls: [],
    state: "streaming",
    finish: null,
    timings: null,
    usage: null,
    progress: null,
    error: null,
    reasoningChunks: 0,
  };
}

export function isEmptyAnswer(message) {
  return message.role === "assistant" && !message.content && !message.reasoning && !message.toolCalls.length;
}

function toWire(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.id, name: message.name, content: message.content };
  }
  if (message.role !== "assistant") {
    return { role: message.role, content: message.content };
  }
  const wire = { role: "assistant", content: message.content };
  if (message.reasoning) {
    wire.reasoning_content = message.reasoning; // without it the prompt differs and the cache cannot be used
  }
  if (message.toolCalls.length) {
    wire.tool_calls = message.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return wire;
}

/** The body of the request that continues these messages. */
export function requestBody(messages, system, fields) {
  const wire = messages.filter((message) => !isEmptyAnswer(message)).map(toWire);
  if (system.trim()) {
    wire.unshift({ role: "system", content: system });
  }
  return {
    messages: wire,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    timings_per_token: true,
    ...fields,
  };
}

function applyCall(answer, delta) {
  const index = delta.index ?? answer.toolCalls.length;
  while (answer.toolCalls.length <= index) {
    answer.toolCalls.push({ id: "", name: "", arguments: "" });
  }
  const call = answer.toolCalls[index];
  call.id = delta.id || call.id || `call_${index}`;
  call.name += delta.function?.name ?? "";
  call.arguments += delta.function?.arguments ?? "";
}

/** Put a chunk of the stream into the answer. */
export function applyChunk(answer, chunk) {
  answer.progress = chunk.prompt_progress ?? answer.progress;
  answer.timings = chunk.timings ?? answer.timings;
  answer.usage = chunk.usage ?? answer.usage;
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) {
    answer.reasoning += delta.reasoning_content;
    answer.reasoningChunks += 1;
  }
  answer.content += delta.content ?? "";
  delta.tool_calls?.forEach((call) => applyCall(answer, call));
  answer.finish = choice?.finish_reason ?? answer.finish;
}

/** Tokens of the answer's reasoning: the server's count, while it is not known that of all tokens so far. */
export function reasoningTokens(answer) {
  const counted = answer.usage?.completion_tokens_details?.reasoning_tokens;
  if (counted !== undefined && counted !== null) {
    return counted;
  }
  const onlyReasoning = !answer.content && !answer.toolCalls.length;
  return (onlyReasoning && answer.timings?.predicted_n) || answer.reasoningChunks;
}

/** Tokens of the context in use after this answer, or null where the server has not told. */
export function contextTokens(answer) {
  const { timings, usage } = answer;
  if (timings) {
    return timings.cache_n + timings.prompt_n + timings.predicted_n;
  }
  return usage?.total_tokens ?? null;
}
