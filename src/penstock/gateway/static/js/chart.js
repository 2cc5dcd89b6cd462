// Charts: drawn by uPlot from what the page holds, in the colours of the page.
let plot = null;
let drawnFor = "";

function colours() {
  const style = getComputedStyle(document.body);
  const probe = document.createElement("i");
  document.body.append(probe);
  const found = ["--flow", "--final", "--revise", "--late", "--open", "--ink-2", "--rule"].map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return { lines: found.slice(0, 5), ink: found[5], rule: found[6], font: `11px ${style.fontFamily}` };
}

function draw(into, chart) {
  const { lines, ink, rule, font } = colours();
  const axis = { stroke: ink, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 4]]; // never by colour alone
  plot?.destroy();
  plot = new window.uPlot(
    {
      width: into.clientWidth,
      height: 200,
      legend: { live: true },
      cursor: { points: { size: 6 } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => new Date(at * 1e3).toISOString().slice(11, ticks[1] - ticks[0] < 60 ? 19 : 16)) }, { ...axis, size: 48 }],
      series: [
        { label: "window", value: (_, at) => (at == null ? "–" : new Date(at * 1e3).toISOString().slice(11, 19)) },
        ...chart.lines.map((line, at) => ({ label: line.label, stroke: lines[at % lines.length], width: 1.6, dash: DASHES[at % DASHES.length], spanGaps: true, value: (_, found) => (found == null ? "–" : found.toLocaleString("en")), points: { show: chart.times.length < 3 } })),
      ],
    },
    [chart.times, ...chart.lines.map((line) => line.values)],
    into,
  );
}

function show(again) {
  const data = document.querySelector("[data-chart]");
  const into = document.querySelector("[data-chart-picture]");
  if (!data || !into || !window.uPlot || !into.clientWidth) return;
  const chart = JSON.parse(data.dataset.chart);
  const shape = JSON.stringify([chart.lines.map((line) => line.label), into.clientWidth]);
  if (again === true || shape !== drawnFor || !plot) draw(into, chart);
  else plot.setData([chart.times, ...chart.lines.map((line) => line.values)]);
  drawnFor = shape;
}

export function startCharts() {
  if (!document.getElementById("part_chart")) return;
  show();
  document.addEventListener("penstock:put", (event) => event.target.id === "part_chart" && show());
  document.addEventListener("penstock:theme", () => show(true));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(true));
  window.addEventListener("resize", () => show());
}
