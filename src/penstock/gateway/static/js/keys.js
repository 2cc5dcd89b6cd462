// Keys: Ctrl-K, /, ?, and g with a letter.
import { openPalette } from "./palette.js";

const PLACES = { o: "/", p: "/pipeline", t: "/topics", v: "/views", b: "/tables", g: "/groups", q: "/queues", l: "/late", a: "/alerts" };
let leader = 0;

function typing(target) {
  return target instanceof Element && target.closest("input:not([type=range]), textarea, select, [contenteditable]");
}

function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    const filter = document.querySelector("[data-filter]");
    if (!filter) return openPaletteBy(event);
    event.preventDefault();
    filter.focus();
    filter.select?.();
  } else if (event.key === "?") {
    document.getElementById("keys").showModal();
  } else if (Date.now() - leader < 1500 && PLACES[event.key]) {
    location.href = PLACES[event.key];
  } else if (event.key === "g") {
    leader = Date.now();
  } else if (event.key === " " && !event.target.closest?.("button, a, summary, input")) {
    const pause = document.querySelector("[data-pause]");
    if (pause) {
      event.preventDefault();
      pause.click();
    }
  }
}

function openPaletteBy(event) {
  event.preventDefault();
  openPalette();
}

export function startKeys() {
  document.addEventListener("keydown", onKey);
  const dialog = document.getElementById("keys");
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  for (const button of document.querySelectorAll("[data-keys]")) button.addEventListener("click", () => dialog.showModal());
}
