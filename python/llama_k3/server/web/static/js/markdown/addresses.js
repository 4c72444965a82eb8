// Addresses of links: which are allowed, and where they end in a text.

const MAX_DESTINATION = 2000; // characters of a link's address and title
const MAX_PARENTHESES = 8; // nested in an address

/** The address when it is http, https or mailto and whole, else null. */
export function safeAddress(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** (destination "title") from `at`, which is behind the opening bracket: {address, end}, or null. */
export function destination(text, at) {
  const limit = Math.min(text.length, at + MAX_DESTINATION);
  let pos = at;
  const skip = () => {
    while (pos < limit && /\s/.test(text[pos])) {
      pos += 1;
    }
  };
  skip();
  const start = pos;
  let address;
  if (text[pos] === "<") {
    const close = text.slice(pos, limit).search(/[>\n]/);
    if (close < 0 || text[pos + close] !== ">") {
      return null;
    }
    address = text.slice(pos + 1, pos + close);
    pos += close + 1;
  } else {
    for (let depth = 0; pos < limit && !/\s/.test(text[pos]); pos += 1) {
      depth += text[pos] === "(" ? 1 : text[pos] === ")" ? -1 : 0;
      if (depth > MAX_PARENTHESES) {
        return null;
      }
      if (depth < 0) {
        break;
      }
    }
    address = text.slice(start, pos);
  }
  skip();
  const quote = text[pos];
  if (quote === '"' || quote === "'") {
    const close = text.slice(pos + 1, limit).indexOf(quote);
    if (close < 0) {
      return null;
    }
    pos += close + 2;
    skip();
  }
  return pos < limit && text[pos] === ")" ? { address, end: pos + 1 } : null;
}

/** Cut from a bare address what belongs to the sentence around it. */
export function trimAddress(address) {
  let end = address.length;
  let unopened = address.split(")").length - address.split("(").length;
  while (end > 0 && (/[.,;:!?'*_~|\]]/.test(address[end - 1]) || (address[end - 1] === ")" && unopened > 0))) {
    end -= 1;
    unopened -= address[end] === ")" ? 1 : 0;
  }
  return address.slice(0, end);
}
