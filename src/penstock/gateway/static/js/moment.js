// The slider: the view as it was at any past moment. Parts of the page are fetched as they were then.
import { moveTo, put } from "./live.js";

const AGAIN_MS = 1000;
let asked = 0;
let timer = 0;

function said(ms) {
  return `${new Date(ms).toISOString().slice(11, 23)}`;
}

async function show(path) {
  const number = ++asked;
  const answer = await fetch(`/parts?path=${encodeURIComponent(path)}`).catch(() => null);
  if (number !== asked) return;
  if (!answer?.ok) {
    setTimeout(() => number === asked && show(path), AGAIN_MS); // else old rows would stand under another moment
    return;
  }
  for (const [id, html] of Object.entries(await answer.json())) {
    const part = document.getElementById(id);
    if (part) put(part, html);
  }
  document.getElementById("main").classList.toggle("past", path.includes("at="));
  document.documentElement.dataset.moment = path;
  moveTo(path);
}

function go(slider, at) {
  const url = new URL(location.href);
  if (at === null) url.searchParams.delete("at");
  else url.searchParams.set("at", new Date(at).toISOString());
  history.replaceState(null, "", url);
  show(url.pathname + url.search);
}

// What can be seen grows while one looks; whoever looks at now stays there.
function follow(slider) {
  if (slider.matches(":active")) return;
  const { from, to } = document.querySelector("[data-span]").dataset;
  Object.assign(slider, { min: from, max: to });
  if (!timer && !new URL(location.href).searchParams.has("at")) slider.value = to;
}

// On a small screen the windows are wider than the page: the newest are the first to be seen.
function showNewest() {
  for (const strip of document.querySelectorAll(".windows")) strip.scrollLeft = strip.scrollWidth;
}

export function startMoment() {
  showNewest();
  const slider = document.querySelector("[data-moment]");
  if (!slider) return;
  const output = document.querySelector("[data-moment-said]");
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    output.textContent = said(at);
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = 0;
      go(slider, at);
    }, 120);
  });
  document.addEventListener("penstock:put", (event) => event.target.id === "part_span" && follow(slider));
  // A step of a key is one part in three hundred, not one millisecond.
  slider.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const step = Math.max(1, Math.round((slider.max - slider.min) / 300));
    slider.value = Number(slider.value) + direction * step;
    slider.dispatchEvent(new Event("input"));
  });
  document.querySelector("[data-moment-now]").addEventListener("click", () => {
    clearTimeout(timer);
    timer = 0;
    output.textContent = "now";
    go(slider, null);
    follow(slider);
  });
}
