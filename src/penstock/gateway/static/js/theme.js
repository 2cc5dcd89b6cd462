// Light, dark or as the system has it; remembered in a cookie, so that the server draws the first frame right.
const ORDER = ["system", "light", "dark"];

function now() {
  return document.documentElement.dataset.theme || "system";
}

function show(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  for (const said of document.querySelectorAll("[data-theme-name]")) said.textContent = name;
  document.dispatchEvent(new CustomEvent("penstock:theme"));
}

export function nextTheme() {
  const name = ORDER[(ORDER.indexOf(now()) + 1) % ORDER.length];
  document.cookie = `theme=${name}; path=/; max-age=31536000; samesite=strict`;
  show(name);
}

export function startTheme() {
  show(now());
  for (const button of document.querySelectorAll("[data-theme-toggle]")) button.addEventListener("click", nextTheme);
}
