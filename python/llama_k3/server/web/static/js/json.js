// Pretty JSON that keeps every token of the text: no number is rounded, no key goes away.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** The text with line breaks and indents, or unchanged where it is not JSON. */
export function prettyJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  const parts = [];
  let depth = 0;
  let before = "";
  const newLine = () => parts.push(`\n${"  ".repeat(depth)}`);
  for (const token of text.match(TOKEN)) {
    const opened = before === "{" || before === "[";
    const closes = token === "}" || token === "]";
    depth -= closes ? 1 : 0;
    if ((opened !== closes && (opened || closes)) || before === ",") {
      newLine();
    }
    parts.push(token === ":" ? ": " : token);
    depth += token === "{" || token === "[" ? 1 : 0;
    before = token;
  }
  return parts.join("");
}
