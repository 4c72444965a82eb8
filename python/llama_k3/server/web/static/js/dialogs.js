// The dialogs: asking for the key, asking whether, and the settings.

import { byId } from "./dom.js";
import { apiKey, isRemembered, keyFault, setApiKey } from "./key.js";
import { EXAMPLE_TOOLS, NUMBERS, applyTheme, numberFault, saveSettings, toolsFault } from "./settings.js";

/** Open a dialog; gives true when its form was sent and `accept` (which may refuse) took it. */
function ask(dialog, accept = () => true) {
  return new Promise((resolve) => {
    const done = new AbortController();
    const { signal } = done;
    let taken = false;
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      taken = accept();
      if (taken) {
        dialog.close();
      }
    }, { signal });
    for (const button of dialog.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => dialog.close(), { signal });
    }
    dialog.addEventListener("close", () => {
      done.abort();
      resolve(taken);
    }, { signal });
    dialog.showModal();
  });
}

/** Show the fault of a field below it; gives whether there is none. */
function showFault(field, fault) {
  const place = byId(`${field.id}-error`);
  place.textContent = fault ?? "";
  if (fault) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", place.id);
  } else {
    field.removeAttribute("aria-invalid");
  }
  return !fault;
}

let askingKey = null;

/** Ask for the API key; gives whether one was entered. Those who ask meanwhile share the answer. */
export function askKey() {
  askingKey ??= openKeyDialog().finally(() => {
    askingKey = null;
  });
  return askingKey;
}

async function openKeyDialog() {
  const dialog = byId("key-dialog");
  const field = byId("key-input");
  byId("key-text").textContent = apiKey()
    ? "The server does not know this key. Enter another one."
    : "This server asks for a key. It is kept for this tab only, unless you let the browser remember it.";
  byId("key-remember").checked = isRemembered();
  showFault(field, null);
  field.value = "";
  return ask(dialog, () => {
    const key = field.value.trim();
    const right = showFault(field, key ? keyFault(key) : "Enter the key.");
    if (right) {
      setApiKey(key, byId("key-remember").checked);
    }
    return right;
  });
}

/** Ask a question that is answered with the button `yes` or not. */
export function confirm(title, text, yes) {
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-yes").textContent = yes;
  return ask(byId("confirm-dialog"));
}

/** Shown in an empty field: what the server takes by itself. */
function showDefaults(form, defaults) {
  for (const name of Object.keys(NUMBERS)) {
    const value = defaults?.[name];
    const unlimited = name === "max_tokens" && !(value > 0);
    const shown = typeof value === "number" ? String(Number(value.toFixed(4))) : "";
    form.elements[name].placeholder = unlimited ? "no limit" : shown;
  }
}

/** Let the user change `settings` in place; gives whether they were saved. `defaults`: the server's parameters. */
export async function openSettings(settings, defaults) {
  const dialog = byId("settings-dialog");
  const form = byId("settings-form");
  const fields = Object.keys(settings).map((name) => form.elements[name]);
  for (const field of fields) {
    field.value = settings[field.name];
    if (byId(`${field.id}-error`)) {
      showFault(field, null);
    }
  }
  showDefaults(form, defaults);
  const key = byId("set-key");
  key.value = apiKey();
  showFault(key, null);
  byId("set-remember").checked = isRemembered();
  return ask(dialog, () => {
    const faulty = fields.filter((field) => {
      const fault = field.name in NUMBERS ? numberFault(field.name, field.value)
        : field.name === "tools" ? toolsFault(field.value) : null;
      return byId(`${field.id}-error`) && !showFault(field, fault);
    });
    if (!showFault(key, keyFault(key.value.trim()))) {
      faulty.push(key);
    }
    if (faulty.length) {
      faulty[0].focus();
      return false;
    }
    for (const field of fields) {
      settings[field.name] = field.value;
    }
    setApiKey(key.value.trim(), byId("set-remember").checked);
    saveSettings(settings);
    applyTheme(settings.theme);
    return true;
  });
}

byId("tools-example").addEventListener("click", () => {
  const field = byId("set-tools");
  field.value = EXAMPLE_TOOLS;
  field.focus();
});
