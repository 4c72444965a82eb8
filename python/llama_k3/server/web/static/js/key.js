// The API key: kept for this tab, or in the browser when asked to.

const NAME = "llama-k3.api-key";

function storages() {
  try {
    return [sessionStorage, localStorage];
  } catch {
    return [];
  }
}

let current = null;

/** The key, or an empty string. */
export function apiKey() {
  current ??= storages().map((storage) => storage.getItem(NAME)).find((key) => key) ?? "";
  return current;
}

/** Whether the key outlives the tab. */
export function isRemembered() {
  return storages().length > 0 && localStorage.getItem(NAME) !== null;
}

/** What is wrong with a text as a key, or null. An empty one is right. */
export function keyFault(text) {
  return /^[\x21-\x7e]*$/.test(text) ? null : "A key has letters, digits and signs of ASCII only, and no spaces.";
}

/** Use this key from now on; an empty one forgets it. */
export function setApiKey(key, remember) {
  current = key;
  const [session, local] = storages();
  try {
    session?.removeItem(NAME);
    local?.removeItem(NAME);
    if (key) {
      (remember ? local : session)?.setItem(NAME, key);
    }
  } catch {
    // A full storage: the key lives as long as the page.
  }
}
