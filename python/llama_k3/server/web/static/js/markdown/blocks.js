// Block markdown: text to a list of blocks. Lists and quotes hold blocks again, down to a depth.

const MAX_DEPTH = 12;
const FENCE = /^(\s*)(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const MARKER = /^(\s*)([-*+]|\d{1,9}[.)])(?=\s|$)/;
const DELIMITER_CELL = /^:?-+:?$/;
const TASK = /^\[([ xX])\]\s/;

const blank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

function isRule(line) {
  return /^ {0,3}[-*_]/.test(line) && /^(-{3,}|\*{3,}|_{3,})$/.test(line.replace(/\s/g, ""));
}

function fenceOf(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

/** The marker of a list item: {indent, ordered, number, mark, content: column of the text}, or null. */
function markerOf(line) {
  const found = MARKER.exec(line);
  if (!found || isRule(line)) {
    return null;
  }
  const [whole, space, mark] = found;
  const gap = indentOf(line.slice(whole.length));
  const ordered = mark.length > 1;
  return {
    indent: space.length,
    ordered,
    number: ordered ? parseInt(mark, 10) : null,
    mark: mark.at(-1),
    content: whole.length + (gap >= 1 && gap <= 4 ? gap : 1),
    empty: blank(line.slice(whole.length)),
  };
}

function splitRow(line) {
  const cells = [];
  let cell = "";
  for (let pos = 0; pos < line.length; pos += 1) {
    if (line[pos] === "\\" && line[pos + 1] === "|") {
      cell += "|";
      pos += 1;
    } else if (line[pos] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += line[pos];
    }
  }
  cells.push(cell.trim());
  if (cells[0] === "") {
    cells.shift();
  }
  if (cells.at(-1) === "") {
    cells.pop();
  }
  return cells;
}

function startsTable(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !lines[at].includes("|") || !/^[\s|:-]+$/.test(next)) {
    return false;
  }
  const delimiters = splitRow(next);
  return delimiters.every((cell) => DELIMITER_CELL.test(cell)) && delimiters.length === splitRow(lines[at]).length;
}

function mathOf(line) {
  const text = line.trim();
  return text.startsWith("\\[") ? "\\]" : text.startsWith("$$") ? "$$" : null;
}

/** Whether a paragraph ends before this line. */
function interrupts(lines, at) {
  const line = lines[at];
  const marker = markerOf(line);
  return (
    blank(line) ||
    HEADING.test(line) ||
    /^ {0,3}>/.test(line) ||
    isRule(line) ||
    fenceOf(line) !== null ||
    mathOf(line) !== null ||
    (marker !== null && !marker.empty && (!marker.ordered || marker.number === 1)) ||
    startsTable(lines, at)
  );
}

// Each take* function gives {block, next: index of the line behind it}, or null where no such block starts.

function takeFence(lines, at) {
  const fence = fenceOf(lines[at]);
  if (!fence) {
    return null;
  }
  const [, indent, ticks, info] = fence;
  const body = [];
  let next = at + 1;
  let closed = false;
  for (; next < lines.length && !closed; next += 1) {
    const text = lines[next].trim();
    closed = text.length >= ticks.length && text === ticks[0].repeat(text.length);
    if (!closed) {
      body.push(lines[next].slice(Math.min(indent.length, indentOf(lines[next]))));
    }
  }
  return { block: { type: "code", language: info.trim().split(/\s/)[0], text: body.join("\n"), closed }, next };
}

function takeHeading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) {
    return null;
  }
  let text = lines[at].slice(found[0].length).trim();
  let tail = text.length;
  while (text[tail - 1] === "#") {
    tail -= 1;
  }
  if (tail === 0 || /\s/.test(text[tail - 1])) {
    text = text.slice(0, tail).trimEnd();
  }
  return { block: { type: "heading", level: found[1].length, text }, next: at + 1 };
}

function takeRule(lines, at) {
  return isRule(lines[at]) ? { block: { type: "rule" }, next: at + 1 } : null;
}

function takeQuote(lines, at, depth) {
  const inner = [];
  let next = at;
  for (; next < lines.length && /^ {0,3}>/.test(lines[next]); next += 1) {
    inner.push(lines[next].replace(/^ {0,3}> ?/, ""));
  }
  return next > at ? { block: { type: "quote", children: parseLines(inner, depth + 1) }, next } : null;
}

function takeMath(lines, at) {
  const close = mathOf(lines[at]);
  if (!close) {
    return null;
  }
  const body = [];
  let text = lines[at].trim().slice(2);
  let next = at + 1;
  const ends = () => text.trimEnd().endsWith(close);
  if (text.includes(close) && !ends()) {
    return null;
  }
  while (!ends() && next < lines.length && !blank(lines[next])) {
    body.push(text);
    text = lines[next];
    next += 1;
  }
  // Without a closer it is a formula only as long as one may still come.
  if (!ends() && !lines.slice(next).every(blank)) {
    return null;
  }
  body.push(ends() ? text.trimEnd().slice(0, -2) : text);
  return { block: { type: "math", text: body.join("\n").trim() }, next };
}

function takeTable(lines, at) {
  if (!startsTable(lines, at)) {
    return null;
  }
  const header = splitRow(lines[at]);
  const align = splitRow(lines[at + 1]).map((cell) => {
    const left = cell.startsWith(":");
    return cell.endsWith(":") ? (left ? "center" : "right") : "left";
  });
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && lines[next].includes("|"); next += 1) {
    const cells = splitRow(lines[next]).slice(0, header.length);
    rows.push([...cells, ...Array(header.length - cells.length).fill("")]);
  }
  return { block: { type: "table", align, header, rows }, next };
}

/** Lines of the item whose marker is at `at`, without their indent: {lines, next, gap: blank lines at the end}. */
function takeItem(lines, at, marker) {
  const inner = [lines[at].slice(marker.content)];
  let next = at + 1;
  let gap = 0;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (blank(line)) {
      gap += 1;
      continue;
    }
    const indent = indentOf(line);
    const nested = indent >= marker.content || (indent >= marker.indent + 2 && markerOf(line) !== null);
    if (!nested && (gap > 0 || markerOf(line) !== null || interrupts(lines, next))) {
      break;
    }
    inner.push(...Array(gap).fill(""));
    gap = 0;
    inner.push(line.slice(Math.min(indent, marker.content)));
  }
  return { lines: inner, next, gap };
}

function takeList(lines, at, depth) {
  const first = markerOf(lines[at]);
  if (!first) {
    return null;
  }
  const items = [];
  let loose = false;
  let next = at;
  let gap = 0;
  while (next < lines.length) {
    const marker = markerOf(lines[next]);
    if (!marker || marker.ordered !== first.ordered || marker.mark !== first.mark) {
      break;
    }
    loose ||= gap > 0;
    const item = takeItem(lines, next, marker);
    const task = TASK.exec(item.lines[0]);
    if (task) {
      item.lines[0] = item.lines[0].slice(task[0].length);
    }
    const children = parseLines(item.lines, depth + 1);
    items.push({ done: task ? task[1] !== " " : null, children });
    ({ next, gap } = item);
  }
  return { block: { type: "list", ordered: first.ordered, start: first.number, loose, items }, next };
}

function takeParagraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && !interrupts(lines, next)) {
    next += 1;
  }
  const text = lines.slice(at, next).map((line) => line.trimStart()).join("\n").trimEnd();
  return { block: { type: "paragraph", text }, next };
}

/** Blocks of these lines, each with `from` and `to`: its first line and the line behind its last. */
function parseLines(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const taken =
      takeFence(lines, at) ??
      takeHeading(lines, at) ??
      takeRule(lines, at) ??
      takeMath(lines, at) ??
      (depth < MAX_DEPTH ? (takeQuote(lines, at, depth) ?? takeList(lines, at, depth)) : null) ??
      takeTable(lines, at) ??
      takeParagraph(lines, at);
    blocks.push({ ...taken.block, from: at, to: taken.next });
    at = taken.next;
  }
  return blocks;
}

/**
 * The blocks of a text, whose lines end with \n. Each has `type`, `begin` (its first character), `source` (its lines), and by type:
 * paragraph {text}, heading {level, text}, code {language, text, closed}, math {text}, rule, quote {children},
 * list {ordered, start, loose, items: [{done: null or bool, children}]}, table {align, header, rows}.
 * A block does not depend on what follows the block behind it.
 */
export function parseBlocks(text) {
  const lines = text.split("\n");
  const starts = [0];
  for (const line of lines) {
    starts.push(starts.at(-1) + line.length + 1);
  }
  return parseLines(lines, 0).map((block) => ({
    ...block,
    begin: starts[block.from],
    source: lines.slice(block.from, block.to).join("\n"),
  }));
}
