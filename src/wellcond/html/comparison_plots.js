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

/** Rows from the top down: plotly counts upwards. */
function rowsAxis(axis, rows) {
  const places = rows.map((_, index) => index);
  return { ...axis, range: [rows.length - 0.5, -0.5], showgrid: false, tickvals: places, ticktext: rows.map(({ arm }) => beside(arm)), tickfont: { color: style("ink") } };
}

function drawDifferences() {
  const rows = data.differences.filter(shown);
  const { axis, layout } = look(90 + 44 * (data.arms.length - hidden.size));
  const text = ({ mean, interval }) => `${short(mean)}` + (interval ? `, 95 % interval ${short(interval[0])} to ${short(interval[1])}` : ", no interval");
  const traces = rows.map((row, index) => ({
    type: "scatter", mode: "markers", x: row.seeds, y: row.seeds.map(() => index + 0.24), hoverinfo: "x", showlegend: false, meta: "seeds",
    marker: { color: faint(colour(row.arm), 0.45), size: 5 }, name: nameOf(row.arm),
  }));
  traces.push(...rows.map((row, index) => {
    const decided = row.interval && (row.interval[0] > 0 || row.interval[1] < 0);
    return {
      type: "scatter", mode: "markers", x: [row.mean], y: [index], name: nameOf(row.arm), meta: "mean",
      marker: { size: 11, symbol: data.arms[row.arm].control ? "diamond" : "circle", color: decided ? colour(row.arm) : style("card"), line: { color: colour(row.arm), width: 2 } },
      error_x: row.interval ? { type: "data", symmetric: false, array: [row.interval[1] - row.mean], arrayminus: [row.mean - row.interval[0]], color: colour(row.arm), thickness: 2, width: 5 } : undefined,
      hovertext: `${nameOf(row.arm)}: ${text(row)}`, hoverinfo: "text",
    };
  }));
  const better = data.higher ? "better →" : "← better";
  Plotly.react("differences", traces, {
    ...layout, hovermode: "closest",
    xaxis: titled(axis, `${labelText(data.metric)}, ${better}`, { zeroline: true, zerolinecolor: style("muted"), zerolinewidth: 1.5, nticks: narrow.matches ? 5 : 8 }),
    yaxis: rowsAxis(axis, rows),
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
    yaxis: rowsAxis(axis, rows),
    annotations: rows.flatMap((row, index) => (row.median === null ? [{ x: 0, y: index, text: ` not reached (${row.reached.length} of ${row.of} seeds)`, showarrow: false, xanchor: "left", font: { color: style("muted") } }] : [])),
  }, CONFIG);
}

function drawDiagram() {
  const { x, y, cells, phases, cosine, starts, labels, names } = data.diagram;
  const ink = "#22262e"; // phases are light in both themes
  const steps = phases.flatMap(({ colour }, index) => [[index / phases.length, colour], [(index + 1) / phases.length, colour]]);
  const words = phases.map((phase) => labelText(phase.words));
  const traces = [
    {
      type: "heatmap", x, y, z: cells, zmin: -0.5, zmax: phases.length - 0.5, colorscale: steps, showscale: false, opacity: dark.matches ? 0.85 : 1,
      hovertext: cells.map((row) => row.map((phase) => words[phase])), hovertemplate: "β %{x:.3~g}, gain %{y:.3~g}<br>%{hovertext}<extra></extra>",
    },
    {
      type: "contour", x, y, z: cosine, showscale: false, hoverinfo: "skip", line: { color: "#666666", width: 1, dash: "dot" },
      contours: { coloring: "none", start: 0.1, end: 0.9, size: 0.2, showlabels: true, labelfont: { size: 10, color: "#555555" } },
    },
    ...starts.filter(shown).map((start) => ({
      type: "scatter", mode: "markers", x: [start.shown[0]], y: [start.shown[1]], name: nameOf(start.arm), meta: "start", cliponaxis: false,
      marker: { color: light(start.arm), size: 13, symbol: data.arms[start.arm].control ? "diamond" : "circle", line: { color: "#ffffff", width: 2 } },
      hovertext: `${nameOf(start.arm)}<br>β ${short(start.beta)}, gain ${short(start.value_gain)}<br>${labelText(start.verdict)}${start.beyond ? "<br>beyond the axes" : ""}`, hoverinfo: "text",
    })),
  ];
  const wrap = (text) => text.split(" ").reduce((lines, word) => {
    const longer = `${lines.at(-1)} ${word}`;
    return longer.length > (narrow.matches ? 16 : 30) ? [...lines, word] : [...lines.slice(0, -1), longer.trim()];
  }, [""]).join("<br>");
  const inside = (value, along, room) => { // a name near the edge would be cut off
    const [low, high] = [Math.log10(along[0]), Math.log10(along.at(-1))];
    return Math.min(Math.max(Math.log10(value), low + room * (high - low)), high - room * (high - low));
  };
  const named = phases.flatMap((phase, index) => (phase.at ? [{ x: inside(phase.at[0], x, narrow.matches ? 0.2 : 0.13), y: inside(phase.at[1], y, narrow.matches ? 0.14 : 0.07), text: wrap(words[index]), showarrow: false, font: { size: narrow.matches ? 11 : 13, color: ink } }] : []));
  // Labels stand above and below in turn, at the edges beside; a phone has no room for them.
  const place = (at, index) => {
    const [share, height] = [x, y].map((along, axis) => Math.log(at[axis] / along[0]) / Math.log(along.at(-1) / along[0]));
    const below = height > 0.15 && (height > 0.85 || index % 2);
    return share > 0.85 ? { ax: -16, ay: height > 0.85 ? 16 : -16, xanchor: "right", yanchor: height > 0.85 ? "top" : "bottom" } : share < 0.15 ? { ax: 16, ay: height > 0.85 ? 16 : -16, xanchor: "left", yanchor: height > 0.85 ? "top" : "bottom" } : { ax: 0, ay: below ? 18 : -18, yanchor: below ? "top" : "bottom" };
  };
  const pointed = narrow.matches ? [] : labels.map((label) => ({ ...label, arms: label.arms.filter((arm) => !hidden.has(arm)) })).filter(({ arms }) => arms.length).map(({ at, arms }, index) => ({
    x: Math.log10(at[0]), y: Math.log10(at[1]), text: arms.map((arm) => nameOf(arm, 24)).join("<br>"), align: "left",
    ...place(at, index), showarrow: true, arrowhead: 0, arrowcolor: ink, arrowwidth: 1,
    font: { size: 11, color: ink }, bgcolor: "rgba(255, 255, 255, 0.8)", borderpad: 2,
  }));
  const { axis, layout } = look(narrow.matches ? 380 : 520);
  const breaking = (text) => (narrow.matches ? text.replace(/\s*\(.*\)/, "") : text);
  Plotly.react("diagram", traces, {
    ...layout, hovermode: "closest", annotations: [...named, ...pointed],
    xaxis: titled({ ...scale(axis, true, x), range: [x[0], x.at(-1)].map(Math.log10), showgrid: false }, breaking(names[0])),
    yaxis: titled({ ...scale(axis, true, y), range: [y[0], y.at(-1)].map(Math.log10), showgrid: false }, breaking(names[1])),
  }, CONFIG);
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
// One change of medium may be several of these; figures are drawn again once for all of them.
const medium = () => [dark, narrow, print].map(({ matches }) => matches).join();
let drawnFor = medium();
for (const query of [dark, narrow, print]) {
  query.addEventListener("change", () => {
    if (medium() !== drawnFor) drawAll();
    drawnFor = medium();
  });
}
drawAll();
