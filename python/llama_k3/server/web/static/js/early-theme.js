// Sets the chosen theme before the first paint; a classic script, as modules run after it.
{
  let theme = "system";
  try {
    theme = JSON.parse(localStorage.getItem("llama-k3.settings"))?.theme ?? "system";
  } catch {
    // No storage, or not ours: the system's theme.
  }
  if (theme === "light" || theme === "dark") {
    document.documentElement.dataset.theme = theme;
  }
}
