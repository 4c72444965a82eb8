// Inline markdown: text to a tree of strings and {type, ...} nodes. Never fails, and its time grows with the
// text's length only: every search is bounded or remembers that it failed.

import { destination, safeAddress, trimAddress } from "./addresses.js";

const MAX_SEARCH = 32; // runs of * _ ~ that a closing run looks back at
const MAX_DEPTH = 24; // of nested nodes
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const SPACE = /^$|\s/u;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const IDEOGRAPH = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u;
const BARE_URL = /https?:\/\/[^\s<>"`\u3000-\u303f\uff01-\uff0f\uff1a-\uff20]+/y;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const LINE_BREAK_TAG = /<br ?\/?>/iy;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#\d{1,7}|#x[0-9a-f]{1,6});/iy;
const NAMED_ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function entityText(name) {
  if (!name.startsWith("#")) {
    return NAMED_ENTITIES[name.toLowerCase()];
  }
  const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
  const valid = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return valid ? String.fromCodePoint(code) : "\ufffd";
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) {
    end += 1;
  }
  return end - at;
}

function characterBefore(text, at) {
  const code = text.charCodeAt(at - 1);
  return code >= 0xdc00 && code <= 0xdfff ? text.slice(at - 2, at) : (text[at - 1] ?? "");
}

function characterAt(text, at) {
  return at < text.length ? String.fromCodePoint(text.codePointAt(at)) : "";
}

/** Whether a run of * _ or ~ may open or close. As in CommonMark, but for ideographs, which have no spaces. */
function flanks(text, at, length) {
  const before = characterBefore(text, at);
  const after = characterAt(text, at + length);
  const loose = (ch) => SPACE.test(ch) || PUNCTUATION.test(ch) || IDEOGRAPH.test(ch);
  const left = !SPACE.test(after) && (!PUNCTUATION.test(after) || loose(before));
  const right = !SPACE.test(before) && (!PUNCTUATION.test(before) || loose(after));
  if (text[at] !== "_") {
    return { canOpen: left, canClose: right };
  }
  return {
    canOpen: left && (!right || PUNCTUATION.test(before)),
    canClose: right && (!left || PUNCTUATION.test(after)),
  };
}

class InlineParser {
  constructor(text) {
    this.text = text;
    this.pos = 0;
    this.nodes = [];
    this.openers = []; // runs of * _ ~ that may open: {ch, length, count: left, canClose, at: index in nodes}
    this.lastTarget = text.lastIndexOf("](");
    this.brackets = []; // {at: index in nodes, openers: height, image}
    this.missing = new Set(); // closers that do not come any more
    this.ticks = null; // runs of backticks: length -> positions, last first
  }

  push(node) {
    this.nodes.push(node);
  }

  parse() {
    const plain = /[^\\`*_~[\]!<&\n$h]+/y;
    while (this.pos < this.text.length) {
      const found = match(plain, this.text, this.pos);
      if (found) {
        this.push(found[0]);
        this.pos += found[0].length;
      } else {
        this.special(this.text[this.pos]);
      }
    }
    return merge(this.nodes);
  }

  special(ch) {
    const handled =
      (ch === "\\" && this.escape()) ||
      (ch === "`" && this.code()) ||
      ((ch === "*" || ch === "_" || ch === "~") && this.emphasis(ch)) ||
      ((ch === "[" || ch === "!") && this.openBracket(ch)) ||
      (ch === "]" && this.closeBracket()) ||
      (ch === "<" && this.angle()) ||
      (ch === "&" && this.entity()) ||
      (ch === "$" && this.math("$$", "$$")) ||
      (ch === "h" && this.bareAddress()) ||
      (ch === "\n" && this.lineBreak());
    if (!handled) {
      this.push(ch);
      this.pos += 1;
    }
  }

  lineBreak() {
    const last = this.nodes.length - 1;
    if (typeof this.nodes[last] === "string") {
      this.nodes[last] = this.nodes[last].trimEnd();
    }
    this.push({ type: "break" });
    this.pos += 1;
    return true;
  }

  escape() {
    const next = this.text[this.pos + 1] ?? "";
    if (next === "\n") {
      this.pos += 1;
      return this.lineBreak();
    }
    if ((next === "(" && this.math("\\(", "\\)")) || (next === "[" && this.math("\\[", "\\]"))) {
      return true;
    }
    if (!ESCAPABLE.test(next)) {
      return false;
    }
    this.push(next);
    this.pos += 2;
    return true;
  }

  /** Formulas are shown as they are written. */
  math(open, close) {
    if (!this.text.startsWith(open, this.pos) || this.missing.has(close)) {
      return false;
    }
    const end = this.text.indexOf(close, this.pos + open.length);
    if (end < 0) {
      this.missing.add(close);
      return false;
    }
    this.push({ type: "math", text: this.text.slice(this.pos + open.length, end).trim() });
    this.pos = end + close.length;
    return true;
  }

  code() {
    const length = runLength(this.text, this.pos);
    const closers = this.tickRuns().get(length) ?? [];
    while (closers.length && closers.at(-1) <= this.pos) {
      closers.pop();
    }
    const closer = closers.at(-1);
    if (closer === undefined) {
      this.push("`".repeat(length));
      this.pos += length;
      return true;
    }
    let inner = this.text.slice(this.pos + length, closer).replace(/\n/g, " ");
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) {
      inner = inner.slice(1, -1);
    }
    this.push({ type: "code", text: inner });
    this.pos = closer + length;
    return true;
  }

  tickRuns() {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const run of [...this.text.matchAll(/`+/g)].reverse()) {
        const length = run[0].length;
        this.ticks.set(length, this.ticks.get(length) ?? []);
        this.ticks.get(length).push(run.index);
      }
    }
    return this.ticks;
  }

  angle() {
    const address = match(ANGLE_URL, this.text, this.pos);
    const safe = address && safeAddress(address[1]);
    if (safe) {
      this.push({ type: "link", address: safe, children: [address[1].replace(/^mailto:/, "")] });
      this.pos += address[0].length;
      return true;
    }
    const tag = match(LINE_BREAK_TAG, this.text, this.pos);
    if (tag) {
      this.push({ type: "break" });
      this.pos += tag[0].length;
    }
    return tag !== null;
  }

  entity() {
    const found = match(ENTITY, this.text, this.pos);
    if (found) {
      this.push(entityText(found[1]));
      this.pos += found[0].length;
    }
    return found !== null;
  }

  bareAddress() {
    if (/[\p{L}\p{N}_]/u.test(characterBefore(this.text, this.pos)) || this.brackets.length) {
      return false;
    }
    const found = match(BARE_URL, this.text, this.pos);
    const address = found ? trimAddress(found[0]) : "";
    const safe = address && safeAddress(address);
    if (!safe) {
      return false;
    }
    this.push({ type: "link", address: safe, children: [address] });
    this.pos += address.length;
    return true;
  }

  openBracket(ch) {
    const image = ch === "!";
    if (this.pos > this.lastTarget || (image && this.text[this.pos + 1] !== "[")) {
      return false;
    }
    this.brackets.push({ at: this.nodes.length, openers: this.openers.length, image });
    this.push(image ? "![" : "[");
    this.pos += image ? 2 : 1;
    return true;
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    const target = bracket && this.text[this.pos + 1] === "(" ? destination(this.text, this.pos + 2) : null;
    if (!target) {
      return false;
    }
    const children = merge(this.nodes.splice(bracket.at).slice(1));
    this.cutOpeners(bracket.openers);
    const safe = safeAddress(target.address);
    const link = safe && parent({ type: "link", address: safe }, children.length ? children : [safe]);
    if (link) {
      // A picture is not loaded: it is a link with the picture's description.
      this.push(link);
      this.brackets = this.brackets.filter((open) => open.image); // no link in a link
    } else {
      this.push(bracket.image ? "![" : "[");
      this.nodes.push(...children);
      this.push(this.text.slice(this.pos, target.end));
    }
    this.pos = target.end;
    return true;
  }

  cutOpeners(height) {
    this.openers.length = Math.min(height, this.openers.length);
  }

  /** Index in `openers`, at least `lowest`, of the run that a closing run matches, or -1. */
  findOpener(ch, length, canOpen, lowest) {
    for (let index = this.openers.length - 1; index >= lowest; index -= 1) {
      const opener = this.openers[index];
      // CommonMark's rule of three keeps *foo**bar* whole.
      const odd = (opener.canClose || canOpen) && (opener.length + length) % 3 === 0 &&
        (opener.length % 3 !== 0 || length % 3 !== 0);
      if (opener.ch === ch && (ch === "~" || !odd)) {
        return index;
      }
    }
    return -1;
  }

  emphasis(ch) {
    const length = runLength(this.text, this.pos);
    const { canOpen, canClose } = flanks(this.text, this.pos, length);
    this.pos += length;
    if (ch === "~" && length !== 2) {
      this.push(ch.repeat(length));
      return true;
    }
    const lowest = Math.max(this.brackets.at(-1)?.openers ?? 0, this.openers.length - MAX_SEARCH);
    let left = length;
    while (canClose && left > 0) {
      const index = this.findOpener(ch, length, canOpen, lowest);
      const used = index < 0 ? 0 : this.wrap(index, left);
      if (used === 0) {
        break;
      }
      left -= used;
    }
    if (left > 0) {
      if (canOpen) {
        this.openers.push({ ch, length, count: left, canClose, at: this.nodes.length });
      }
      this.push(ch.repeat(left));
    }
    return true;
  }

  /** Close the opener with this index; gives the number of characters used up. */
  wrap(index, left) {
    const opener = this.openers[index];
    const used = Math.min(2, opener.count, left);
    const type = opener.ch === "~" ? "del" : used === 2 ? "strong" : "em";
    const node = parent({ type }, merge(this.nodes.slice(opener.at + 1)));
    if (!node) {
      this.cutOpeners(0); // what they would hold is as deep as nodes get
      return 0;
    }
    opener.count -= used;
    this.cutOpeners(opener.count === 0 ? index : index + 1);
    this.nodes.length = opener.at;
    if (opener.count > 0) {
      this.push(opener.ch.repeat(opener.count));
    }
    this.push(node);
    return used;
  }
}

/** The node with these children, or null where it would be nested too deep. */
function parent(node, children) {
  const depth = 1 + children.reduce((most, child) => Math.max(most, child.depth ?? 0), 0);
  return depth > MAX_DEPTH ? null : { ...node, children, depth };
}

/** Join neighbouring strings. */
function merge(nodes) {
  const merged = [];
  for (const node of nodes) {
    if (typeof node === "string" && typeof merged.at(-1) === "string") {
      merged[merged.length - 1] += node;
    } else {
      merged.push(node);
    }
  }
  return merged;
}

/** Nodes: string, {type: "break"}, {type: "code" | "math", text}, {type: "link", address, children},
 *  {type: "strong" | "em" | "del", children}; those with children have their `depth`. */
export function parseInline(text) {
  return new InlineParser(text).parse();
}
