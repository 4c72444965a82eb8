// The settings: their values, their limits, and what they add to a request.

const NAME = "llama-k3.settings";

/** Numbers of the sampling: limits, and whether they are whole. An empty value leaves the choice to the server. */
export const NUMBERS = {
  temperature: { least: 0, most: 100, whole: false },
  top_k: { least: 0, most: 1_000_000, whole: true },
  top_p: { least: 0, most: 1, whole: false },
  min_p: { least: 0, most: 1, whole: false },
  max_tokens: { least: 1, most: 10_000_000, whole: true },
};

const DEFAULTS = {
  system: "",
  thinking: "",
  effort: "",
  temperature: "",
  top_k: "",
  top_p: "",
  min_p: "",
  max_tokens: "",
  tools: "",
  theme: "system",
};

const CHOICES = { thinking: ["", "on", "off"], effort: ["", "low", "high", "max"], theme: ["system", "light", "dark"] };

export const EXAMPLE_TOOLS = JSON.stringify(
  [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "Get the weather in a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  null,
  2,
);

/** What is wrong with the text of a number field, or null. */
export function numberFault(name, text) {
  const { least, most, whole } = NUMBERS[name];
  if (text.trim() === "") {
    return null;
  }
  const value = Number(text);
  if (!Number.isFinite(value) || (whole && !Number.isInteger(value)) || value < least || value > most) {
    return `Found ${text.trim()}, wanted ${whole ? "a whole number" : "a number"} from ${least} to ${most}.`;
  }
  return null;
}

/** What is wrong with the text of the tools, or null. */
export function toolsFault(text) {
  if (text.trim() === "") {
    return null;
  }
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
  if (!Array.isArray(tools)) {
    return "Found JSON that is not a list, wanted [ ... ] with a tool in each place.";
  }
  const names = new Set();
  for (const [index, tool] of tools.entries()) {
    const name = tool?.function?.name;
    if (tool?.type !== "function" || typeof name !== "string" || name === "") {
      return `Tool ${index + 1}: wanted {"type": "function", "function": {"name": ..., "parameters": ...}}.`;
    }
    const { parameters } = tool.function;
    if (parameters !== undefined && (parameters === null || typeof parameters !== "object" || Array.isArray(parameters))) {
      return `Tool ${index + 1} (${name}): its parameters are not a JSON schema object.`;
    }
    if (names.has(name)) {
      return `Tool ${index + 1} (${name}): an earlier tool has this name.`;
    }
    names.add(name);
  }
  return null;
}

/** A kept or imported value, with a default for each part that is missing or wrong. */
function checked(value) {
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    const found = value?.[name];
    const right =
      typeof found === "string" &&
      (CHOICES[name]?.includes(found) ?? true) &&
      !(name in NUMBERS && numberFault(name, found)) &&
      !(name === "tools" && toolsFault(found));
    settings[name] = right ? found : DEFAULTS[name];
  }
  return settings;
}

export function loadSettings() {
  try {
    return checked(JSON.parse(localStorage.getItem(NAME)));
  } catch {
    return { ...DEFAULTS };
  }
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(NAME, JSON.stringify(settings));
  } catch {
    // A full or missing storage: the settings live as long as the page.
  }
}

export function applyTheme(theme) {
  if (theme === "system") {
    delete document.documentElement.dataset.theme;
  } else {
    document.documentElement.dataset.theme = theme;
  }
}

/** The fields of a chat completion request that the settings choose. */
export function requestFields(settings) {
  const fields = {};
  for (const name of Object.keys(NUMBERS)) {
    if (settings[name].trim() !== "") {
      fields[name] = Number(settings[name]);
    }
  }
  if (settings.thinking === "off") {
    fields.reasoning_effort = "none";
  } else {
    if (settings.effort) {
      fields.reasoning_effort = settings.effort;
    }
    if (settings.thinking === "on") {
      fields.chat_template_kwargs = { thinking: true };
    }
  }
  const tools = settings.tools.trim() ? JSON.parse(settings.tools) : [];
  if (tools.length) {
    fields.tools = tools;
  }
  return fields;
}
