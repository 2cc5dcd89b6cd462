// Ctrl-K: go anywhere by name.
import { nextTheme } from "./theme.js";

const SHOWN = 12;
const OWN = [{ name: "change between light and dark", kind: "action", run: nextTheme }];
let places = [];
let found = [];
let at = 0;

function score(place, words) {
  const name = place.name.toLowerCase();
  let sum = 0;
  for (const word of words) {
    const where = name.indexOf(word);
    if (where < 0) return -1;
    sum += where === 0 ? 4 : /[\s._-]/.test(name[where - 1]) ? 3 : 1;
  }
  return sum - name.length / 200 + (place.kind === "page" ? 0.3 : 0);
}

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = places.map((place) => [score(place, words), place]).filter(([points]) => points >= 0 || !words.length);
  found = scored.sort((a, b) => b[0] - a[0]).slice(0, SHOWN).map(([, place]) => place);
  at = 0;
  draw();
}

function draw() {
  const list = document.getElementById("palette-list");
  list.replaceChildren(
    ...found.map((place, index) => {
      const item = document.createElement("li");
      item.id = `palette-${index}`;
      item.role = "option";
      item.setAttribute("aria-selected", String(index === at));
      item.append(place.name);
      const kind = document.createElement("span");
      kind.textContent = place.kind;
      item.append(kind);
      item.addEventListener("click", () => go(place));
      return item;
    }),
  );
  const input = document.querySelector("#palette input");
  input.setAttribute("aria-activedescendant", found.length ? `palette-${at}` : "");
  list.children[at]?.scrollIntoView({ block: "nearest" });
}

function go(place) {
  document.getElementById("palette").close();
  if (place.run) place.run();
  else location.href = place.href;
}

function onKey(event) {
  if (event.key === "ArrowDown") at = Math.min(at + 1, found.length - 1);
  else if (event.key === "ArrowUp") at = Math.max(at - 1, 0);
  else if (event.key === "Enter" && found[at]) return void go(found[at]);
  else return;
  event.preventDefault();
  draw();
}

export async function openPalette() {
  const dialog = document.getElementById("palette");
  if (dialog.open) return;
  dialog.showModal();
  const input = dialog.querySelector("input");
  input.value = "";
  places = [...OWN, ...places.filter((place) => place.href)];
  search("");
  const answer = await fetch("/palette.json");
  if (!answer.ok) return;
  places = [...OWN, ...(await answer.json()).places];
  search(input.value);
}

export function startPalette() {
  const dialog = document.getElementById("palette");
  const input = dialog.querySelector("input");
  input.addEventListener("input", () => search(input.value));
  input.addEventListener("keydown", onKey);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  for (const button of document.querySelectorAll("[data-palette]")) button.addEventListener("click", openPalette);
  if (/Mac|iPhone|iPad/.test(navigator.platform))
    for (const key of document.querySelectorAll("[data-mod-k]")) key.textContent = "⌘K";
}
