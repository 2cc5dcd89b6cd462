// The pipeline, drawn from left to right. Laid out when what there is changes; else only its words move.
import { Graph, layout } from "../vendor/dagre.js";

const SVG = "http://www.w3.org/2000/svg";
const BOX = { width: 208, height: 52 };
const [GAP, EDGE] = [16, 8];
let drawn = "";

function element(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// The longest chain of edges, so that a short pipeline is drawn as wide as a long one.
function ranks({ nodes, edges }) {
  const depth = new Map(nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < nodes.length; round++) {
    let moved = false;
    for (const { source, target } of edges) {
      if (!depth.has(source) || !depth.has(target) || depth.get(target) > depth.get(source)) continue;
      depth.set(target, depth.get(source) + 1);
      moved = true;
    }
    if (!moved) break;
  }
  return 1 + Math.max(0, ...depth.values());
}

// What nothing is joined to yet, under the rest in rows: in one column it would be the whole page.
function placeLoose(nodes, top, room) {
  const [right, down] = [BOX.width + GAP, BOX.height + GAP];
  const columns = Math.max(1, Math.floor((room - 2 * EDGE + GAP) / right));
  const at = (index) => ({ x: EDGE + BOX.width / 2 + (index % columns) * right, y: top + EDGE + BOX.height / 2 + Math.floor(index / columns) * down });
  const height = nodes.length ? Math.ceil(nodes.length / columns) * down - GAP + 2 * EDGE : 0;
  return { at: new Map(nodes.map((node, index) => [node.id, at(index)])), width: Math.min(columns, nodes.length) * right - GAP + 2 * EDGE, height };
}

function placeJoined(nodes, edges, room) {
  const graph = new Graph();
  const columns = ranks({ nodes, edges });
  const ranksep = columns > 1 ? Math.min(460, Math.max(60, (room - 2 * EDGE - columns * BOX.width) / (columns - 1))) : 0;
  graph.setGraph({ rankdir: "LR", nodesep: GAP, ranksep, marginx: EDGE, marginy: EDGE });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { ...BOX });
  for (const edge of edges) graph.setEdge(edge.source, edge.target);
  layout(graph);
  const { width, height } = graph.graph();
  return { at: new Map(nodes.map(({ id }) => [id, graph.node(id)])), width, height };
}

function place({ nodes, edges }, room) {
  const known = new Set(nodes.map((node) => node.id));
  const drawn = edges.filter((edge) => known.has(edge.source) && known.has(edge.target));
  const ends = new Set(drawn.flatMap((edge) => [edge.source, edge.target]));
  const [joined, loose] = [nodes.filter((node) => ends.has(node.id)), nodes.filter((node) => !ends.has(node.id))];
  const above = joined.length ? placeJoined(joined, drawn, room) : { at: new Map(), width: 0, height: 0 };
  const below = placeLoose(loose, above.height, Math.max(room, above.width));
  return { at: new Map([...above.at, ...below.at]), width: Math.max(above.width, below.width), height: above.height + below.height };
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX.width / 2, from.y, to.x - BOX.width / 2, to.y];
  const bend = Math.max(30, (x2 - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

function drawNode(node, at) {
  const box = element("g", { class: `node ${node.state}`, "data-node": node.id });
  const [x, y] = [at.x - BOX.width / 2, at.y - BOX.height / 2];
  box.append(element("rect", { class: "box", x, y, ...BOX, rx: 9 }));
  box.append(element("text", { class: "name", x: x + 13, y: y + 21 }, short(node.label, 27)));
  box.append(element("text", { class: "sub", x: x + 13, y: y + 38 }, short(node.mark || node.sub, 29)));
  box.append(element("title", {}, [node.label, node.sub, node.mark].filter(Boolean).join(", ")));
  if (!node.href) return box;
  const link = element("a", { href: node.href });
  link.append(box);
  return link;
}

function draw(into, graph) {
  const { at, width, height } = place(graph, into.clientWidth || 900);
  const svg = element("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, width, height });
  for (const edge of graph.edges) {
    const [from, to] = [at.get(edge.source), at.get(edge.target)];
    if (!from || !to) continue;
    const line = element("path", { d: curve(from, to), "data-edge": `${edge.source}\n${edge.target}` });
    svg.append(line);
  }
  for (const node of graph.nodes) svg.append(drawNode(node, at.get(node.id)));
  into.replaceChildren(svg);
}

function update(into, graph) {
  const lines = new Map([...into.querySelectorAll("[data-edge]")].map((line) => [line.dataset.edge, line]));
  for (const edge of graph.edges) {
    const line = lines.get(`${edge.source}\n${edge.target}`);
    line?.setAttribute("class", `edge ${edge.state} ${edge.width < 1.3 ? "still" : ""}`);
    line?.setAttribute("stroke-width", edge.width);
  }
  const boxes = new Map([...into.querySelectorAll("[data-node]")].map((box) => [box.dataset.node, box]));
  for (const node of graph.nodes) {
    const box = boxes.get(node.id);
    if (!box) continue;
    box.setAttribute("class", `node ${node.state}`);
    const sub = box.querySelector(".sub");
    const said = short(node.mark || node.sub, 29);
    if (sub.textContent !== said) sub.textContent = said;
    sub.classList.toggle("marking", Boolean(node.mark));
  }
}

function show() {
  const data = document.querySelector("[data-graph]");
  const into = document.querySelector("[data-graph-picture]");
  if (!data || !into) return;
  const graph = JSON.parse(data.dataset.graph);
  const shape = JSON.stringify([graph.nodes.map((n) => n.id), graph.edges.map((e) => [e.source, e.target])]);
  if (shape !== drawn || !into.firstChild) draw(into, graph);
  drawn = shape;
  update(into, graph);
}

export function startGraph() {
  if (!document.querySelector("[data-graph]")) return;
  show();
  document.addEventListener("penstock:put", show);
}
