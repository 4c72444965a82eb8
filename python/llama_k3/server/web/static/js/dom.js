// Makes and finds elements. Text goes in as text nodes only.

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * el("button", {class: "x", type: "button", onclick: f}, "text", node): an element. Attributes null, undefined
 * and false are left out, true is the empty string, functions are listeners. Children null are left out.
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A symbol of icons.svg, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `web/icons.svg#${name}`);
  svg.append(use);
  return svg;
}

/** A small button with an icon; `label` is its name and tooltip. */
export function iconButton(name, label, onclick, attributes = {}) {
  return el(
    "button",
    { type: "button", class: "icon-button small", "aria-label": label, title: label, onclick, ...attributes },
    icon(name),
  );
}

/** Set text only when it changes, so that an unchanged frame costs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** 12345 as 12,345. */
export function count(number) {
  return Number(number).toLocaleString("en-US");
}

/** "1 token", "2 tokens". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Say something to screen readers, once. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Copy text; also where the clipboard API is missing (plain http on another host). */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const holder = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  holder.value = text;
  const focused = document.activeElement;
  document.body.append(holder);
  holder.select();
  document.execCommand("copy");
  holder.remove();
  focused?.focus();
}

/** A button that copies what `text()` gives, and says so for a moment. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    let done = true;
    await copyText(text()).catch(() => {
      done = false;
    });
    button.replaceChildren(icon(done ? "check" : "warning"));
    announce(done ? "Copied" : "Copying failed");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

/** Offer a text as a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 0);
}
