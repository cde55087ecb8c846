// Colours of finalists by number; what was none is small and grey. The diagram is light in both themes.
const ON_DIAGRAM = ["#3d4754", "#1f4fa8", "#b3430f", "#1d6a3e", "#7a2f92"];
const REST = "#6b7480";
const HEIGHT = 300; // pixels of a figure: two of them and what is above fit one screen
const colourOf = ({ colour }) => style(colour === null ? "rest" : `s${colour % ON_DIAGRAM.length}`);
const nameOf = (name) => labelText(cut(name, 60));

/** Rows with a mean each; zero, where it is marked, is the model as it is. */
function drawRows(id, { rows, steps }, title, zero) {
  const { axis, layout } = look(Math.max(narrow.matches ? 0 : HEIGHT, 90 + 44 * rows.length));
  const traces = intervalTraces(rows.map((row) => ({ ...row, name: nameOf(row.name), colour: colourOf(row), symbol: "circle" })));
  Plotly.react(id, traces, {
    ...layout, hovermode: "closest",
    xaxis: titled(axis, title, { ...(zero ? { ...ZERO_LINE(), rangemode: "tozero" } : {}), nticks: narrow.matches ? 5 : 8 }),
    yaxis: rowsAxis(axis, rows.map(({ name }) => onTwoLines(name))),
    annotations: rows.flatMap((row, index) => (row.note ? [{ xref: "paper", x: 0.5, y: index, yshift: 14, text: labelText(row.note), showarrow: false, font: { color: style("muted") } }] : [])),
  }, CONFIG);
}

/** The way from the model as it is to the advice, with a word at either end. */
function wayTo({ shown: from }, { shown: to }, { x, y }) {
  const [start, end] = [from, to].map((at) => at.map(Math.log10));
  const share = (value, along) => (value - Math.log10(along[0])) / (Math.log10(along.at(-1)) - Math.log10(along[0]));
  const up = end[1] >= start[1];
  const word = (at, text, above) => {
    const [across, height] = [share(Math.log10(at[0]), x), share(Math.log10(at[1]), y)];
    const over = height > 0.9 ? false : height < 0.1 ? true : above;
    return { ...diagramLabel(at, text), showarrow: false, yshift: over ? 12 : -12, yanchor: over ? "bottom" : "top", xanchor: across > 0.85 ? "right" : across < 0.15 ? "left" : "center" };
  };
  const arrow = {
    name: "advice", x: end[0], y: end[1], ax: start[0], ay: start[1], xref: "x", yref: "y", axref: "x", ayref: "y", text: "",
    showarrow: true, arrowhead: 2, arrowsize: 1.1, arrowwidth: 2, arrowcolor: DIAGRAM_INK, standoff: 8, startstandoff: 8,
  };
  return [arrow, word(from, "now", !up), word(to, "advised", up)];
}

function drawDiagram() {
  const { points } = data.diagram;
  const { axis, layout } = look(HEIGHT);
  const plane = diagramPlane(data.diagram, axis, true);
  const place = (point) => diagramPoint(point, {
    name: nameOf(point.candidate), meta: point.colour === null ? "rest" : "finalist", size: point.colour === null ? 6 : 13,
    colour: point.colour === null ? REST : ON_DIAGRAM[point.colour % ON_DIAGRAM.length],
  });
  const [now, advised] = [data.own, data.advised].map((name) => points.find(({ candidate }) => candidate === name));
  Plotly.react("diagram", [...plane.traces, ...[...points].reverse().map(place)], {
    ...layout, ...plane.axes, hovermode: "closest",
    annotations: now && advised ? wayTo(now, advised, data.diagram) : [], // phases are named below the figure
  }, CONFIG);
}

function drawAll() {
  if (data.differences) drawRows("differences", data.differences, `loss − loss of ${nameOf(data.own)}, ← better`, true);
  if (data.losses) drawRows("losses", data.losses, "loss, ← better", false);
  if (data.diagram) drawDiagram();
}

/** Select the code, then copy it: where a browser does not allow that, one keystroke is left. */
async function copyCode() {
  getSelection().selectAllChildren(byId("code"));
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
  } catch {
    if (!document.execCommand("copy")) return "selected: copy it with Ctrl+C or ⌘C";
  }
  return "copied";
}

if (byId("copy")) byId("copy").addEventListener("click", async () => { byId("copied").textContent = await copyCode(); });
keepDrawn(drawAll);
