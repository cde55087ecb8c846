const { layers, quantities, severities: SEVERITIES, roles: ROLES } = data;
/** Names without the parts that all share, but for the one before the first that differs: layers.0 of model.layers.0.attn. */
function shortened(names) {
  const parts = names.map((name) => name.split("."));
  const [first] = parts;
  if (names.length < 2 || parts.some((own) => own.length !== first.length)) return names;
  const differs = first.map((part, index) => parts.some((own) => own[index] !== part));
  const start = Math.max(0, differs.indexOf(true) - 1);
  return parts.map((own) => own.slice(start, differs.lastIndexOf(true) + 1).join("."));
}
const shortNames = shortened(layers.map((layer) => layer.name));
const width = Math.max(0, ...layers.map((layer) => layer.heads));
const narrow = matchMedia("(max-width: 960px)");
const DIVERGING = { light: ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"], dark: ["#6aaedb", "#2f5f86", "#2a2f38", "#93452f", "#f08a6c"] };
const MAGMA = ["#221150", "#5f187f", "#982d80", "#d3436e", "#f8765c", "#febb81", "#fcfdbf"];
const SHOWN_ROWS = 400; // a browser lays out some thousand cells at once without a pause
const WORDS_FIT = 16; // heads across; more of them leave no room for numbers in the cells
const SMALL = 560; // pixels; a narrower map has its scale above and short names
const SMALL_FIT = 6; // heads across a small map
const ROW_LIMIT = 24; // layers; the same downwards
const CONFIG = { displaylogo: false, responsive: true, modeBarButtons: [["toImage"]] };
let quantity = quantities[0];
let chosen = null;

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function short(number) {
  const size = Math.abs(number);
  return (size >= 0.01 && size < 999.5) || !size ? String(Number(number.toPrecision(size >= 1 && size < 100 ? 2 : 3))) : number.toExponential(1).replace("e+", "e");
}

const tick = (number) => short(number).replace(".0e", "e");

function look(height) {
  const axis = { fixedrange: true, zeroline: false, gridcolor: style("line"), linecolor: style("line"), automargin: true };
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: style("ink") };
  const paper = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: style("gap"), font, height, dragmode: false };
  return { axis, paper };
}

/** Ticks of a colour bar whose numbers are logarithms: whole decades, or 1, 2, 5 where there are few of them. */
function decades(low, high) {
  const ticks = [];
  const step = Math.max(1, Math.ceil((high - low) / 8));
  for (let power = Math.floor(low); power <= high; power++) {
    for (const digit of high - low < 2.5 ? [1, 2, 5] : [1]) {
      const at = power + Math.log10(digit);
      if (at >= low - 1e-9 && at <= high + 1e-9 && (digit > 1 || power % step === 0)) ticks.push(at);
    }
  }
  return ticks.length > 1 ? ticks : [low, high];
}

const log10 = (value) => (value === null || value <= 0 ? null : Math.log10(value));

function hover(layer, head) {
  const place = `${cut(layers[layer].name, 60)} · head ${head}`;
  if (head >= layers[layer].heads) return labelText(place) + `<br>this layer has ${layers[layer].heads} heads`;
  const lines = [place, `${quantity.label}: ${quantity.texts[layer][head]}`, quantity.details[layer][head]];
  const [code] = layers[layer].verdicts[head];
  return lines.concat(code ? [`● ${code}`] : []).filter(Boolean).map((line) => labelText(cut(line, 90))).join("<br>");
}

function drawMap() {
  const heads = [...Array(width).keys()];
  const rows = layers.map((_, layer) => layer);
  const grid = (cell) => rows.map((layer) => heads.map((head) => cell(layer, head)));
  const inside = (layer, head) => head < layers[layer].heads;
  const z = grid((layer, head) => {
    const value = inside(layer, head) ? quantity.values[layer][head] : null;
    return quantity.log ? log10(value) : value;
  });
  const [low, high] = quantity.log ? quantity.limits.map(Math.log10) : quantity.limits;
  const small = byId("map").clientWidth < SMALL;
  const longest = small ? 16 : 30; // characters; what would be cut is often just what differs
  const names = layers.every(({ name }) => name.length <= longest) ? layers.map(({ name }) => name) : shortNames;
  const roomy = width <= (small ? SMALL_FIT : WORDS_FIT) && layers.length <= ROW_LIMIT;
  const written = grid((layer, head) => {
    if (z[layer][head] === null) return "";
    const mark = quantity.marks[layer][head];
    const number = roomy ? short(quantity.values[layer][head]) : "";
    return mark === "≥" ? mark + number : number + mark;
  });
  const sequential = dark.matches ? MAGMA : [...MAGMA].reverse();
  const stops = quantity.diverging ? DIVERGING[dark.matches ? "dark" : "light"] : sequential;
  const beside = { title: { text: quantity.label, side: "right" } };
  const above = { orientation: "h", y: 1.02, yanchor: "bottom", len: 1, title: { text: quantity.label, side: "top" } };
  const bar = { thickness: 12, outlinewidth: 0, ...(small ? above : beside) };
  if (quantity.log) {
    bar.tickvals = decades(low, high);
    bar.ticktext = bar.tickvals.map((at) => tick(10 ** at));
  }
  const gaps = rows.flatMap((layer) => heads.filter((head) => inside(layer, head) && z[layer][head] === null).map((head) => [layer, head]));
  const judged = rows.flatMap((layer) => heads.filter((head) => inside(layer, head) && layers[layer].verdicts[head].some(Boolean)).map((head) => [layer, head]));
  const { axis, paper } = look(Math.max(260, layers.length * (roomy ? 36 : 17) + (small ? 150 : 90)));
  const traces = [
    {
      type: "heatmap", x: heads, y: rows, z, zmin: low, zmax: high, colorbar: bar, xgap: 1.5, ygap: 1.5,
      colorscale: stops.map((stop, index) => [index / (stops.length - 1), stop]),
      text: written, texttemplate: "%{text}", textfont: { size: 12 }, hovertext: grid(hover), hoverinfo: "text",
    },
    {
      type: "scatter", mode: "text", hoverinfo: "skip", showlegend: false, textfont: { color: style("muted") },
      x: gaps.map(([, head]) => head), y: gaps.map(([layer]) => layer),
      text: gaps.map(([layer, head]) => labelText(quantity.marks[layer][head] || (quantity.values[layer][head] === 0 ? "0" : "–"))),
    },
    {
      type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false,
      x: judged.map(([, head]) => head + (roomy ? 0.38 : 0.25)), y: judged.map(([layer]) => layer - (roomy ? 0.34 : 0.2)),
      marker: { color: judged.map(([layer, head]) => style(layers[layer].verdicts[head][2])), size: roomy ? 9 : 6, line: { color: style("card"), width: 1.5 } },
    },
  ];
  const layout = {
    ...paper,
    margin: { l: 10, r: 10, t: 6, b: 40 },
    hoverlabel: { align: "left" },
    xaxis: { ...axis, range: [-0.5, width - 0.5], showgrid: false, title: { text: "head" }, dtick: Math.ceil(width / 20), tickangle: 0 },
    yaxis: {
      ...axis, range: [layers.length - 0.5, -0.5], showgrid: false,
      tickvals: rows, ticktext: names.map((name) => labelText(cut(name, longest)) + " "),
    },
    shapes: chosen === null ? [] : [{
      type: "rect", x0: chosen[1] - 0.5, x1: chosen[1] + 0.5, y0: chosen[0] - 0.5, y1: chosen[0] + 0.5,
      line: { color: style("mark"), width: 3 },
    }],
  };
  byId("meaning").textContent = quantity.meaning;
  Plotly.react("map", traces, layout, CONFIG);
}

const middle = (values) => {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known.length ? (known[Math.floor((known.length - 1) / 2)] + known[Math.ceil((known.length - 1) / 2)]) / 2 : null;
};

/** What matters, against depth: each head a dot, the median of a layer a line. */
function drawOverview() {
  const shown = quantities.filter((one) => one.overview);
  byId("through").hidden = !shown.length;
  if (!shown.length) return;
  const stacked = narrow.matches;
  const { axis, paper } = look(stacked ? 210 * shown.length : 250);
  const layout = { ...paper, plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 10, t: 28, b: 36 }, showlegend: false, hoverlabel: { align: "left" }, annotations: [] };
  const traces = [];
  const room = stacked ? 0.1 : 0.06;
  const size = (1 - room * (shown.length - 1)) / shown.length;
  shown.forEach((one, index) => {
    const number = index ? index + 1 : "";
    const start = index * (size + room);
    const across = stacked ? [0, 1] : [start, start + size];
    const up = stacked ? [1 - start - size, 1 - start] : [0, 1];
    const heads = layers.flatMap((layer, at) => one.values[at].map((value, head) => [at, head, value]).filter(([, , value]) => value !== null));
    traces.push({
      type: "scatter", mode: "markers", xaxis: "x" + number, yaxis: "y" + number, x: heads.map(([at]) => at), y: heads.map(([, , value]) => value),
      customdata: heads.map(([at, head]) => [at, head]), marker: { color: style("accent"), size: 5, opacity: 0.45 }, cliponaxis: false,
      hovertext: heads.map(([at, head]) => labelText(`${cut(layers[at].name, 60)} · head ${head}`) + `<br>${labelText(one.label)}: ${labelText(one.texts[at][head])}`), hoverinfo: "text",
    }, {
      type: "scatter", mode: layers.length > 1 ? "lines" : "markers", xaxis: "x" + number, yaxis: "y" + number, hoverinfo: "skip", cliponaxis: false,
      x: layers.map((_, at) => at), y: layers.map((_, at) => middle(one.values[at])), line: { color: style("ink"), width: 1.5 }, marker: { color: style("ink"), symbol: "line-ew-open", size: 14 },
    });
    const margin = Math.max(0.5, layers.length * 0.02);
    layout["xaxis" + number] = { ...axis, domain: across, anchor: "y" + number, range: [-margin, layers.length - 1 + margin], showgrid: false, dtick: Math.ceil(layers.length / 12), tick0: 0, tickangle: 0 };
    if (!stacked || index === shown.length - 1) layout["xaxis" + number].title = { text: "layer" };
    layout["yaxis" + number] = { ...axis, domain: up, anchor: "x" + number, range: one.limits, nticks: 5 };
    layout.annotations.push({ text: labelText(one.label), xref: "paper", yref: "paper", x: across[0], y: up[1], xanchor: "left", yanchor: "bottom", yshift: 6, showarrow: false, font: { size: 13, color: style("ink") } });
  });
  Plotly.react("overview", traces, layout, CONFIG);
}

/** Singular values of one head: its weights above, its Jacobian below. */
function drawSpectrum(layer, head) {
  const { spectra, heads, groups } = layers[layer];
  const shared = Math.floor((head * groups) / heads);
  const dashes = { scaled: "dot", trained: "dash" };
  const traces = [];
  for (const [name, perHead] of Object.entries(spectra)) {
    const [symbol, state] = name.split(" ");
    const values = perHead[symbol === "W_K" || symbol === "W_V" ? shared : head];
    if (!values) continue;
    const zeros = values.filter((value) => value === null || value <= 0).length;
    traces.push({
      type: "scatter", mode: values.length > 40 ? "lines" : "lines+markers", name: zeros ? `${name} (${zeros} × 0)` : name,
      x: values.map((_, index) => index + 1), y: values.map((value) => (value > 0 ? value : null)),
      line: { color: style(ROLES[symbol] || "jacobian"), width: 2, dash: dashes[state] || "solid" }, marker: { size: 5 },
      showlegend: symbol !== "J" || zeros > 0, hovertemplate: "σ<sub>%{x}</sub> = %{y:.3g}", ...(symbol === "J" ? { xaxis: "x2", yaxis: "y2" } : {}),
    });
  }
  byId("spectrum").hidden = !traces.length;
  byId("no-spectrum").hidden = traces.length > 0;
  if (!traces.length) return; // hidden, not purged: plotly may still be adjusting the margins of what it drew last
  const lower = traces.some((trace) => trace.xaxis);
  const upper = traces.some((trace) => !trace.xaxis);
  const { axis, paper } = look(lower && upper ? 460 : 300);
  const scale = (below) => {
    const drawn = traces.filter((trace) => Boolean(trace.xaxis) === below).flatMap(({ y }) => y.filter(Boolean).map(Math.log10));
    const tickvals = drawn.length ? decades(Math.min(...drawn), Math.max(...drawn)).map((power) => 10 ** power) : [];
    return { ...axis, type: "log", tickvals, ticktext: tickvals.map(tick) };
  };
  const layout = { ...paper, plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 6, t: 8, b: 10 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, showlegend: true };
  if (upper) {
    layout.xaxis = { ...axis, anchor: "y", title: lower ? undefined : { text: "index" } };
    layout.yaxis = { ...scale(false), anchor: "x", domain: lower ? [0.58, 1] : [0, 1], title: { text: "σ of the weights" } };
  }
  if (lower) {
    layout.xaxis2 = { ...axis, anchor: "y2", title: { text: "index" } };
    layout.yaxis2 = { ...scale(true), anchor: "x2", domain: upper ? [0, 0.44] : [0, 1], title: { text: "σ of the Jacobian" } };
  }
  Plotly.react("spectrum", traces, layout, CONFIG);
}

function show(layer, head) {
  const [code, verdict, severity, remedy] = layers[layer].verdicts[head];
  byId("place").textContent = `${layers[layer].name} · head ${head}`;
  byId("reading").textContent = [`${quantity.label}: ${quantity.texts[layer][head]}`, quantity.details[layer][head]].filter(Boolean).join("; ");
  byId("judgement").replaceChildren(...(code ? [element("span", code, `tag ${severity}`), " "] : []), verdict, ...(remedy ? [" ", element("code", remedy, "remedy")] : []));
  drawSpectrum(layer, head);
}

function choose(layer, head) {
  chosen = [layer, head];
  show(layer, head);
  drawMap();
  markRow();
}

