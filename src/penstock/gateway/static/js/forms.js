// Small things about forms: pausing what comes in, filling one form from a row, filtering a list as one types.
import { hold } from "./live.js";

function onPause(button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  button.textContent = on ? "Go on" : "Pause";
  hold(button.dataset.pause, on);
  const dot = document.querySelector("[data-live-dot]");
  dot?.classList.toggle("off", on);
  if (dot) dot.textContent = on ? "paused" : "live";
}

function onFill(button) {
  const form = document.querySelector(button.dataset.fill);
  const dialog = form.closest("dialog");
  for (const [name, value] of Object.entries(JSON.parse(button.dataset.values))) {
    if (form.elements[name]) form.elements[name].value = value;
  }
  form.querySelector("[data-answer]")?.replaceChildren();
  dialog?.showModal();
  form.querySelector("textarea, input:not([type=hidden])")?.focus();
}

function onNarrow(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll(`${input.dataset.narrow} tbody tr`)) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
}

export function startForms() {
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const pause = target?.closest("[data-pause]");
    const fill = target?.closest("[data-fill]");
    const close = target?.closest("[data-close]");
    if (pause) onPause(pause);
    if (fill) onFill(fill);
    if (close) close.closest("dialog").close();
  });
  for (const input of document.querySelectorAll("[data-narrow]")) {
    input.addEventListener("input", () => onNarrow(input));
    document.addEventListener("penstock:put", () => onNarrow(input));
  }
}
