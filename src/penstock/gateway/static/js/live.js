// Keeps a page current: the server sends the parts that changed, and they are put in place without losing
// the reader's focus or selection. A page that hears nothing says that it is stale.
const STALE_MS = 6000;
let source = null;
let heard = Date.now();
let trouble = "";
const held = new Set(); // parts that the reader has paused

export function hold(part, on) {
  if (on) held.add(part);
  else held.delete(part);
}

export function put(part, html) {
  window.Idiomorph.morph(part, html, {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    callbacks: { beforeNodeMorphed: (old) => !(old instanceof Element && old.hasAttribute("data-still")) },
  });
  window.htmx.process(part);
  part.dispatchEvent(new CustomEvent("penstock:put", { bubbles: true }));
}

function onParts(event) {
  alive();
  for (const [id, html] of Object.entries(JSON.parse(event.data))) {
    const part = document.getElementById(id);
    if (part && !held.has(id)) put(part, html);
  }
}

function alive() {
  heard = Date.now();
  trouble = "";
  document.getElementById("stale").hidden = true;
}

function open() {
  source?.close();
  source = new EventSource(`/live?path=${encodeURIComponent(document.body.dataset.path)}`);
  source.addEventListener("parts", onParts);
  source.addEventListener("beat", alive);
  source.addEventListener("trouble", (event) => {
    const told = JSON.parse(event.data);
    trouble = told.message;
    if (told.age_s) heard = Date.now() - told.age_s * 1000;
  });
  source.onopen = alive;
}

function watch() {
  const age = Date.now() - heard;
  const stale = document.getElementById("stale");
  if (document.hidden || (age < STALE_MS && !trouble)) return;
  const why = trouble || "the server does not answer";
  stale.textContent = `This page is ${Math.round(age / 1000)} seconds old: ${why}. It goes on by itself.`;
  stale.hidden = false;
  if (source?.readyState === EventSource.CLOSED) open();
}

// The address of the page may change without a load: another moment, another filter.
export function moveTo(path) {
  document.body.dataset.path = path;
  if (source) open();
}

export function startLive() {
  if (!("live" in document.body.dataset)) return;
  open();
  setInterval(watch, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source?.close();
    else {
      heard = Date.now();
      open();
    }
  });
  window.addEventListener("pagehide", () => source?.close());
}
