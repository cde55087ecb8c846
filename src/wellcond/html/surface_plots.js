// The response of training over β and g at the start, and below it what the theory predicts over the same plane.
const SHADES = [[0, "#440154"], [0.25, "#3b528b"], [0.5, "#21918c"], [0.75, "#5ec962"], [1, "#fde725"]];
const placed = data.arms.filter(({ beta, branch }) => beta && branch);
const nameOf = (name) => labelText(cut(name, 40));

function planeAxes(axis) {
  const along = (values, name) => planeAxis(axis, values, name, narrow.matches);
  return { xaxis: along(data.x, "sharpness of attention at the start, β (0: every token alike)"), yaxis: along(data.y, "gain of attention at the start, g") };
}

/** Names of schemes, beside their points and inside the plot. */
function labels() {
  if (narrow.matches) return [];
  const edge = 0.6 * data.x.at(-1); // beyond it names stand on the left of their points
  return data.labels.map(({ at, text, more }) => ({
    ...diagramLabel(at, nameOf(text) + (more ? ` and ${more} more` : "")), showarrow: false, xanchor: at[0] > edge ? "right" : "left", xshift: at[0] > edge ? -8 : 8, yshift: 10,
  }));
}

/** Arms as points. */
function armTraces() {
  return placed.map((one) => ({
    type: "scatter", mode: "markers", x: [one.beta], y: [one.branch], name: nameOf(one.name), meta: "arm", cliponaxis: false,
    marker: { symbol: one.control_of ? "diamond-open" : "circle", size: 11, color: one.control_of ? "#ffffff" : "#ff8f9b", line: { color: "#ffffff", width: 2 } },
    hovertext: `${nameOf(one.name)}<br>β ${short(one.beta)}, g ${short(one.branch)}<br>${labelText(data.metric)} ${short(one.mean)}${one.residual === null ? "" : `<br>${one.residual > 0 ? "+" : ""}${short(one.residual)} to the surface`}`, hoverinfo: "text",
  }));
}

/** Outlines of what the theory rules out. */
function ruledOut() {
  if (!data.cells) return [];
  return data.phases.flatMap((phase, index) => (phase.trainable ? [] : [{
    type: "contour", x: data.x, y: data.y, z: data.cells.map((row) => row.map((cell) => (cell === index ? 1 : 0))), showscale: false, hoverinfo: "skip", name: labelText(phase.words), meta: "ruled out",
    contours: { coloring: "none", start: 0.5, end: 0.5, size: 1 }, line: { color: "#222222", width: 1.5, dash: "dash" },
  }]));
}

function drawSurface() {
  const { axis, layout } = look(narrow.matches ? 380 : 480);
  const { place, first, second, value } = data.best;
  const traces = [
    {
      type: "heatmap", x: data.x, y: data.y, z: data.response, customdata: data.deviation, colorscale: SHADES, reversescale: !data.higher, zsmooth: false,
      colorbar: { title: { text: labelText(data.metric), side: "right" }, thickness: 12, outlinewidth: 0, tickfont: { color: style("muted") } },
      hovertemplate: `β %{x:.3~g}, g %{y:.3~g}<br>${labelText(data.metric)} %{z:.4~g} ± %{customdata:.2~g}<extra></extra>`,
    },
    {
      type: "scatter", mode: "markers", x: data.grid.map(({ beta }) => beta), y: data.grid.map(({ branch }) => branch), name: "trained starts", meta: "grid",
      marker: { size: 5, color: "#ffffff", line: { color: "#333333", width: 0.5 } },
      hovertext: data.grid.map((one) => `β ${short(one.beta)}, g ${short(one.branch)}<br>${one.results.map(short).join(", ")}`), hoverinfo: "text",
    },
    { type: "scatter", mode: "lines", x: [...first, null, place[0], place[0]], y: [place[1], place[1], null, ...second], line: { color: "#222222", width: 1.5 }, hoverinfo: "skip", name: "of the best, 95 %" },
    ...ruledOut(),
    ...armTraces(),
    {
      type: "scatter", mode: "markers", x: [place[0]], y: [place[1]], name: "best", meta: "best", marker: { symbol: "star", size: 18, color: "#ffd166", line: { color: "#222222", width: 1 } },
      hovertext: `best of the surface<br>β ${short(place[0])}, g ${short(place[1])}<br>${labelText(data.metric)} ${short(value)}`, hoverinfo: "text",
    },
  ];
  Plotly.react("surface", traces, { ...layout, ...planeAxes(axis), hovermode: "closest", annotations: labels() }, CONFIG);
}

function drawPhases() {
  const { axis, layout } = look(narrow.matches ? 300 : 340);
  const traces = [
    phaseMap(data, "g"),
    ...placed.map((one) => ({
      type: "scatter", mode: "markers", x: [one.beta], y: [one.branch], name: nameOf(one.name), meta: "arm", cliponaxis: false,
      marker: { symbol: one.control_of ? "diamond-open" : "circle", size: 9, color: "#b3313f", line: { color: "#ffffff", width: 1 } }, hovertext: nameOf(one.name), hoverinfo: "text",
    })),
  ];
  Plotly.react("phases", traces, { ...layout, ...planeAxes(axis), hovermode: "closest" }, CONFIG);
}

keepDrawn(() => {
  drawSurface();
  if (data.cells) drawPhases();
});
