// Server-sent events out of a response's body.

/** Yields the data of each event. A stream that breaks off throws what fetch throws. */
export async function* eventData(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => text.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) {
          data.push(line.slice(5).replace(/^ /, ""));
        } else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
      if (done) {
        return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
