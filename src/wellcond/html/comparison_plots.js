const hidden = new Set();
const shown = (one) => !hidden.has(one.arm);
const nameOf = (arm, most = 44) => labelText(cut(data.arms[arm].name, most));
const dashOf = (arm) => (data.arms[arm].control ? "dash" : ["solid", "dot", "dashdot"][Math.floor(arm / 10) % 3]);
const colour = (arm) => style(`s${arm % 10}`);
const beside = (arm) => onTwoLines(data.arms[arm].name);
const symbolOf = (arm) => (data.arms[arm].control ? "diamond" : "circle");

/** The outline of a band, one part for each stretch without gaps. */
function outline({ x, low, high }) {
  const xs = [], ys = [];
  for (let start = 0; start < x.length; start++) {
    if (low[start] === null) continue;
    let end = start;
    while (end + 1 < x.length && low[end + 1] !== null) end++;
    const there = x.slice(start, end + 1);
    xs.push(...there, ...[...there].reverse(), null);
    ys.push(...high.slice(start, end + 1), ...low.slice(start, end + 1).reverse(), null);
    start = end;
  }
  return [xs, ys];
}

function drawCurve(id, curve) {
  const bands = curve.bands.filter(shown);
  const lines = curve.lines.filter(shown);
  const traces = [];
  for (const band of bands.filter(({ seeds }) => seeds > 1)) {
    const [x, y] = outline(band);
    traces.push({
      type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: faint(colour(band.arm), 0.16), line: { width: 0 },
      hoverinfo: "skip", showlegend: false, meta: "band", name: nameOf(band.arm),
    });
  }
  for (const line of lines) {
    const last = line.y.reduce((at, value, index) => (value === null ? at : index), -1);
    const ended = line.y.map((_, index) => (index === last ? "x" : "circle"));
    traces.push({
      type: "scatter", mode: "lines+markers", x: line.x, y: line.y, name: `${nameOf(line.arm)}, seed ${line.seed}, ${line.status}`, meta: "single",
      line: { color: colour(line.arm), width: 1.2, dash: "dot" },
      marker: { color: colour(line.arm), symbol: ended, size: line.y.map((_, index) => (index === last ? 9 : 0)) },
      hovertemplate: "%{y:.4~g}", showlegend: false,
    });
  }
  for (const band of bands) {
    const range = band.seeds > 1 ? " (%{customdata[0]:.4~g} – %{customdata[1]:.4~g})" : "";
    traces.push({
      type: "scatter", mode: band.x.length > 30 ? "lines" : "lines+markers", x: band.x, y: band.mean, name: nameOf(band.arm), meta: "mean",
      line: { color: colour(band.arm), width: 2, dash: dashOf(band.arm) }, marker: { size: 5, color: colour(band.arm) },
      customdata: band.x.map((_, index) => [band.low[index], band.high[index]]), hovertemplate: "%{y:.4~g}" + range,
    });
  }
  const { axis, layout } = look(narrow.matches ? 260 : 320);
  const values = [...bands.flatMap(({ low, high }) => [...low, ...high]), ...lines.flatMap(({ y }) => y)].filter((value) => value !== null);
  Plotly.react(id, traces, {
    ...layout, hovermode: "x unified",
    xaxis: titled(axis, "step", { range: [-0.02 * data.steps, 1.03 * data.steps], hoverformat: ",d" }),
    yaxis: scale(axis, curve.log && values.length > 0, values),
  }, CONFIG);
}

function drawDifferences() {
  const rows = data.differences.filter(shown);
  const { axis, layout } = look(90 + 44 * (data.arms.length - hidden.size));
  const traces = intervalTraces(rows.map((row) => ({
    ...row, name: nameOf(row.arm), colour: colour(row.arm), symbol: symbolOf(row.arm),
    filled: row.interval && (row.interval[0] > 0 || row.interval[1] < 0),
  })));
  const better = data.higher ? "better →" : "← better";
  Plotly.react("differences", traces, {
    ...layout, hovermode: "closest",
    xaxis: titled(axis, `${labelText(data.metric)}, ${better}`, { ...ZERO_LINE(), nticks: narrow.matches ? 5 : 8 }),
    yaxis: rowsAxis(axis, rows.map(({ arm }) => beside(arm))),
  }, CONFIG);
}

function drawReaching() {
  const rows = data.reaching.filter((row) => row.of && shown(row));
  const { axis, layout } = look(90 + 44 * (data.arms.length - hidden.size));
  const traces = rows.map((row, index) => ({
    type: "bar", orientation: "h", x: [row.median ?? 0], y: [index], name: nameOf(row.arm), width: 0.55, meta: "median",
    marker: { color: faint(colour(row.arm), 0.4), line: { color: colour(row.arm), width: 1.5 }, pattern: { shape: data.arms[row.arm].control ? "/" : "" , fgcolor: colour(row.arm), fgopacity: 0.5 } },
    text: row.median === null ? `not reached (${row.reached.length} of ${row.of} seeds)` : `${short(row.median)} (${row.reached.length} of ${row.of} seeds)`, textposition: "none",
    hovertext: `${nameOf(row.arm)}: ${row.median === null ? "not reached by most seeds" : "median " + short(row.median)}`, hoverinfo: "text",
  }));
  traces.push({
    type: "scatter", mode: "markers", x: rows.flatMap(({ reached }) => reached), y: rows.flatMap(({ reached }, index) => reached.map(() => index)),
    marker: { color: rows.flatMap(({ arm, reached }) => reached.map(() => colour(arm))), size: 7, line: { color: style("card"), width: 1 } },
    hoverinfo: "x", showlegend: false, name: "each seed", meta: "seeds",
  });
  Plotly.react("reaching", traces, {
    ...layout, hovermode: "closest", bargap: 0.4,
    xaxis: titled(axis, "steps: median (bar) and every seed (dots)", { range: [0, 1.04 * data.steps], nticks: narrow.matches ? 5 : 8 }),
    yaxis: rowsAxis(axis, rows.map(({ arm }) => beside(arm))),
    annotations: rows.flatMap((row, index) => (row.median === null ? [{ x: 0, y: index, text: ` not reached (${row.reached.length} of ${row.of} seeds)`, showarrow: false, xanchor: "left", font: { color: style("muted") } }] : [])),
  }, CONFIG);
}

function drawDiagram() {
  const { x, y, starts, labels } = data.diagram;
  const { axis, layout } = look(narrow.matches ? 380 : 520);
  const plane = diagramPlane(data.diagram, axis, narrow.matches);
  const traces = [
    ...plane.traces,
    ...starts.filter(shown).map((start) => diagramPoint(start, { name: nameOf(start.arm), meta: "start", colour: light(start.arm), symbol: symbolOf(start.arm) })),
  ];
  // Labels stand above and below in turn, at the edges beside; a phone has no room for them.
  const place = (at, index) => {
    const [share, height] = [x, y].map((along, axis) => Math.log(at[axis] / along[0]) / Math.log(along.at(-1) / along[0]));
    const below = height > 0.15 && (height > 0.85 || index % 2);
    return share > 0.85 ? { ax: -16, ay: height > 0.85 ? 16 : -16, xanchor: "right", yanchor: height > 0.85 ? "top" : "bottom" } : share < 0.15 ? { ax: 16, ay: height > 0.85 ? 16 : -16, xanchor: "left", yanchor: height > 0.85 ? "top" : "bottom" } : { ax: 0, ay: below ? 18 : -18, yanchor: below ? "top" : "bottom" };
  };
  const pointed = narrow.matches ? [] : labels.map((label) => ({ ...label, arms: label.arms.filter((arm) => !hidden.has(arm)) })).filter(({ arms }) => arms.length).map(({ at, arms }, index) => ({
    ...diagramLabel(at, arms.map((arm) => nameOf(arm, 24)).join("<br>")), align: "left",
    ...place(at, index), showarrow: true, arrowhead: 0, arrowcolor: DIAGRAM_INK, arrowwidth: 1,
  }));
  Plotly.react("diagram", traces, { ...layout, ...plane.axes, hovermode: "closest", annotations: [...plane.annotations, ...pointed] }, CONFIG);
}

/** The first of each pair of colours: the diagram is light in both themes. */
const LIGHT = ["#5f6b7c", "#2f5fb3", "#c8501e", "#2b7f4f", "#8a3fa0", "#a87a00", "#0a86a0", "#c0306f", "#76502c", "#5d7d17"];
const light = (arm) => LIGHT[arm % 10];

function drawAll() {
  const group = (name) => data.monitored.filter((curve) => curve.group === name);
  if (byId("differences")) drawDifferences();
  if (byId("reaching")) drawReaching();
  for (const [name, curve] of Object.entries(data.curves)) drawCurve(name, curve);
  group("first").forEach((curve, index) => drawCurve(`first-${index}`, curve));
  for (const name of ["sigma", "rest"]) if (byId(name)) drawCurve(name, group(name)[byId(`${name}-chosen`).value]);
  if (data.diagram) drawDiagram();
}

for (const key of document.querySelectorAll(".key")) {
  key.addEventListener("click", () => {
    const arm = Number(key.dataset.arm);
    if (!hidden.delete(arm)) hidden.add(arm);
    key.setAttribute("aria-pressed", String(!hidden.has(arm)));
    drawAll();
  });
}
for (const menu of document.querySelectorAll("select")) menu.addEventListener("change", drawAll);
keepDrawn(drawAll);
