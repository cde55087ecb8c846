// A trainability diagram: the phases of a plane of β and the branch's gain, and points on it. Phases are light in both
// themes, and so is what is written on them.
const DIAGRAM_INK = "#22262e";

/** Phases cell by cell; `gain` is what hover texts call the other axis. */
function phaseMap({ x, y, cells, phases }, gain) {
  const steps = phases.flatMap(({ colour }, index) => [[index / phases.length, colour], [(index + 1) / phases.length, colour]]);
  const words = phases.map((phase) => labelText(phase.words));
  return {
    type: "heatmap", x, y, z: cells, zmin: -0.5, zmax: phases.length - 0.5, colorscale: steps, showscale: false, opacity: dark.matches ? 0.85 : 1,
    hovertext: cells.map((row) => row.map((phase) => words[phase] ?? "")), hovertemplate: `β %{x:.3~g}, ${gain} %{y:.3~g}<br>%{hovertext}<extra></extra>`,
  };
}

/** A logarithmic axis of a plane, from end to end; a small one has no room for what its name has in brackets. */
const planeAxis = (axis, values, name, small) => titled({ ...scale(axis, true, values), range: [values[0], values.at(-1)].map(Math.log10), showgrid: false }, small ? name.replace(/\s*\(.*\)/, "") : name);

/** The traces, the names of the phases and the axes of a diagram; a small one has less room for words. */
function diagramPlane(plane, axis, small) {
  const { x, y, phases, cosine, names } = plane;
  const traces = [
    phaseMap(plane, "gain"),
    {
      type: "contour", x, y, z: cosine, showscale: false, hoverinfo: "skip", line: { color: "#666666", width: 1, dash: "dot" },
      contours: { coloring: "none", start: 0.1, end: 0.9, size: 0.2, showlabels: true, labelfont: { size: 10, color: "#555555" } },
    },
  ];
  const wrap = (text) => text.split(" ").reduce((lines, word) => {
    const longer = `${lines.at(-1)} ${word}`;
    return longer.length > (small ? 16 : 30) ? [...lines, word] : [...lines.slice(0, -1), longer.trim()];
  }, [""]).join("<br>");
  const inside = (value, along, room) => { // a name near the edge would be cut off
    const [low, high] = [Math.log10(along[0]), Math.log10(along.at(-1))];
    return Math.min(Math.max(Math.log10(value), low + room * (high - low)), high - room * (high - low));
  };
  const annotations = phases.flatMap((phase) => (phase.at ? [{ x: inside(phase.at[0], x, small ? 0.2 : 0.13), y: inside(phase.at[1], y, small ? 0.14 : 0.07), text: wrap(labelText(phase.words)), showarrow: false, font: { size: small ? 11 : 13, color: DIAGRAM_INK } }] : []));
  return { traces, annotations, axes: { xaxis: planeAxis(axis, x, names[0], small), yaxis: planeAxis(axis, y, names[1], small) } };
}

/** A point with its numbers; one beyond the axes is drawn at their end. */
function diagramPoint(point, { name, meta, colour, symbol = "circle", size = 13 }) {
  return {
    type: "scatter", mode: "markers", x: [point.shown[0]], y: [point.shown[1]], name, meta, cliponaxis: false,
    marker: { color: colour, size, symbol, line: { color: "#ffffff", width: size > 8 ? 2 : 1 } },
    hovertext: `${name}<br>β ${short(point.beta)}, gain ${short(point.value_gain)}<br>${labelText(point.verdict)}${point.beyond ? "<br>beyond the axes" : ""}`, hoverinfo: "text",
  };
}

/** Text at a point, readable on every phase. */
const diagramLabel = (at, text) => ({
  x: Math.log10(at[0]), y: Math.log10(at[1]), text, font: { size: 11, color: DIAGRAM_INK }, bgcolor: "rgba(255, 255, 255, 0.8)", borderpad: 2,
});
