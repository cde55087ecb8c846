// Rows of numbers, each with the interval of its mean and a dot for every seed.

/** Rows from the top down: plotly counts upwards. */
function rowsAxis(axis, names) {
  return { ...axis, range: [names.length - 0.5, -0.5], showgrid: false, tickvals: names.map((_, index) => index), ticktext: names, tickfont: { color: style("ink") } };
}

const ZERO_LINE = () => ({ zeroline: true, zerolinecolor: style("muted"), zerolinewidth: 1.5 });

/** Seeds first, then means with their intervals; a row has seeds, mean, interval, name, colour, symbol and filled. */
function intervalTraces(rows) {
  const text = ({ mean, interval }) => (mean === null ? "no mean" : short(mean)) + (interval ? `, 95 % interval ${short(interval[0])} to ${short(interval[1])}` : ", no interval");
  const seeds = rows.map((row, index) => ({
    type: "scatter", mode: "markers", x: row.seeds, y: row.seeds.map(() => index + 0.24), hoverinfo: "x", showlegend: false, meta: "seeds",
    marker: { color: faint(row.colour, 0.45), size: 5 }, name: row.name,
  }));
  const means = rows.map((row, index) => ({
    type: "scatter", mode: "markers", x: [row.mean], y: [index], name: row.name, meta: "mean",
    marker: { size: 11, symbol: row.symbol, color: row.filled ? row.colour : style("card"), line: { color: row.colour, width: 2 } },
    error_x: row.interval ? { type: "data", symmetric: false, array: [row.interval[1] - row.mean], arrayminus: [row.mean - row.interval[0]], color: row.colour, thickness: 2, width: 5 } : undefined,
    hovertext: `${row.name}: ${text(row)}`, hoverinfo: "text",
  }));
  return [...seeds, ...means];
}
