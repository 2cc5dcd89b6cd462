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

// At midnight the day: of windows that are days long, each begins at 00:00.
function told(at, between) {
  const text = new Date(at * 1e3).toISOString();
  return between < 60 ? text.slice(11, 19) : at % 86400 === 0 ? text.slice(5, 10) : text.slice(11, 16);
}

function draw(into, chart) {
  const { lines, ink, rule, font } = colours();
  const axis = { stroke: ink, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
  const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 4]]; // never by colour alone
  const long = chart.times.at(-1) - chart.times[0] >= 86400;
  plot?.destroy();
  plot = new window.uPlot(
    {
      width: into.clientWidth,
      height: 200,
      tzDate: (at) => window.uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
      legend: { live: true },
      cursor: { points: { size: 6 } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((at) => told(at, ticks[1] - ticks[0])) }, { ...axis, size: 48 }],
      series: [
        { label: "window", value: (_, at) => (at == null ? "–" : new Date(at * 1e3).toISOString().slice(long ? 0 : 11, 19).replace("T", " ")) },
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
  if (again === true || shape !== drawnFor || !into.contains(plot?.root ?? null)) draw(into, chart);
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
