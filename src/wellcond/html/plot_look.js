const narrow = matchMedia("screen and (max-width: 600px)");
const print = matchMedia("print");
const PAPER = 660; // pixels across a printed page

/** A colour that lets through what is behind it. */
function faint(hex, alpha) {
  const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${parts.join(", ")}, ${alpha})`;
}

/** A number for people: four digits at most, without trailing zeros. */
function short(number) {
  const size = Math.abs(number);
  return !size || (size >= 0.001 && size < 99999) ? String(Number(number.toPrecision(4))) : number.toExponential(1).replace(".0e", "e").replace("e+", "e");
}

/** A name on two lines at most, as there is little room beside a plot. */
function onTwoLines(name) {
  const most = narrow.matches ? 16 : 26;
  const words = name.split(" ");
  let first = words.shift();
  while (words.length && (first + " " + words[0]).length <= most) first += " " + words.shift();
  return [first, words.join(" ")].filter(Boolean).map((line) => labelText(cut(line, most))).join("<br>") + " ";
}

function look(height) {
  const axis = {
    fixedrange: true, zeroline: false, gridcolor: style("line"), linecolor: style("line"), automargin: true, tickfont: { color: style("muted") },
    title: { font: { color: style("muted"), size: 12 }, standoff: 8 },
  };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height, dragmode: false, showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: style("ink") },
    margin: { l: 10, r: 14, t: 10, b: 10 },
    hoverlabel: { align: "left", bgcolor: style("card"), bordercolor: style("line"), font: { color: style("ink") }, namelength: -1 },
    ...(print.matches ? { width: PAPER } : { autosize: true }),
  };
  return { axis, layout };
}

/** An axis with a title; plotly's own titles do not merge. */
const titled = (axis, text, more) => ({ ...axis, title: { ...axis.title, text }, ...more });

/** A logarithmic axis wants labels at 1, 2, 5 where it spans few decades, and none between where it spans many. */
function scale(axis, log, values) {
  if (!log) return { ...axis, type: "linear", exponentformat: "power" };
  const powers = values.filter((value) => value > 0).map(Math.log10);
  const [low, high] = powers.reduce(([least, most], power) => [Math.min(least, power), Math.max(most, power)], [Infinity, -Infinity]);
  const digits = high - low < 1.2 ? [1, 2, 3, 5, 7] : high - low < 2.5 ? [1, 2, 5] : [1];
  const step = Math.max(1, Math.ceil((high - low) / 8));
  const tickvals = [];
  for (let power = Math.floor(low) - 1; power <= high + 1; power++) {
    if (power % step === 0) tickvals.push(...digits.map((digit) => digit * 10 ** power));
  }
  const margin = Math.max(0.04, 0.06 * (high - low));
  return { ...axis, type: "log", range: [low - margin, high + margin], tickvals, ticktext: tickvals.map(short) };
}

/** The picture that is saved has a key of its own, as the page's is not in it. */
const CAMERA = {
  name: "save", title: "Save as a picture", icon: Plotly.Icons.camera,
  click: (plot) => Plotly.downloadImage(
    { data: plot.data, layout: { ...plot.layout, autosize: false, showlegend: true, paper_bgcolor: style("card") } },
    { format: "png", filename: plot.id, width: 900, height: 560, scale: 2 },
  ),
};
const CONFIG = { displaylogo: false, responsive: true, modeBarButtons: [[CAMERA]] };

/** Draw now, and again whenever the medium changes; one change of it may be several of these. */
function keepDrawn(draw) {
  const medium = () => [dark, narrow, print].map(({ matches }) => matches).join();
  let drawnFor = medium();
  for (const query of [dark, narrow, print]) {
    query.addEventListener("change", () => {
      if (medium() !== drawnFor) draw();
      drawnFor = medium();
    });
  }
  draw();
}
