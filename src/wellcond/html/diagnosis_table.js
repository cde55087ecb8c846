// The table.
const every = [
  { label: "layer", words: true, upwards: true, key: (row) => row.layer, text: (row) => layers[row.layer].name, kind: "name" },
  { label: "head", upwards: true, key: (row) => row.head, text: (row) => String(row.head) },
  { label: "finding", words: true, key: (row) => (row.code ? row.grade + row.code : null), text: (row) => row.code, kind: "finding" },
  ...quantities.map((one) => ({
    label: one.label,
    extra: !one.column,
    key: (row) => one.values[row.layer][row.head],
    text: (row) => one.texts[row.layer][row.head],
    note: (row) => one.details[row.layer][row.head],
  })),
  { label: "verdict", words: true, key: (row) => row.verdict || null, text: (row) => row.verdict, kind: "wide" },
];
const all = layers.flatMap((layer, index) => layer.verdicts.map(([code, verdict, severity], head) => ({
  layer: index, head, code, verdict, severity, grade: SEVERITIES.indexOf(severity), searched: `${layer.name} head ${head} ${severity} ${code} ${verdict}`.toLowerCase(),
})));
let columns = [];
let order = null;
let most = SHOWN_ROWS;

function sorted(rows) {
  if (!order) return rows;
  const { key } = order.column;
  const sign = order.upwards ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [first, second] = [key(a), key(b)];
    if (first === null || second === null) return (first === null) - (second === null); // what is missing comes last
    return sign * (first < second ? -1 : first > second ? 1 : 0);
  });
}

function drawRows() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = sorted(all.filter((row) => words.every((word) => row.searched.includes(word))));
  byId("rows").replaceChildren(...found.slice(0, most).map((row) => {
    const line = document.createElement("tr");
    for (const { text, words, kind, note } of columns) {
      const missing = text(row) === "not measured";
      const cell = element("td", kind === "finding" ? "" : missing ? "–" : text(row), (words ? "words " : "") + (kind || ""));
      if (kind === "finding" && row.code) cell.append(element("span", row.code, `tag ${row.severity}`));
      if (kind === "name") cell.title = text(row);
      if (note) cell.title = [missing ? "not measured" : "", note(row)].filter(Boolean).join(": ");
      line.append(cell);
    }
    line.dataset.place = `${row.layer},${row.head}`;
    line.addEventListener("click", () => choose(row.layer, row.head));
    return line;
  }));
  byId("count").textContent = `${found.length} of ${all.length} heads`;
  byId("more").hidden = found.length <= most;
  byId("more").textContent = `Show all ${found.length} rows`;
  columns.forEach((column, index) => {
    const header = byId("columns").children[index];
    if (order && order.column === column) header.setAttribute("aria-sort", order.upwards ? "ascending" : "descending");
    else header.removeAttribute("aria-sort");
  });
  byId("heads").style.setProperty("--first-column", `${byId("columns").children[0].offsetWidth}px`);
  markRow();
}

function markRow() {
  for (const line of byId("rows").children) line.classList.toggle("chosen", chosen !== null && line.dataset.place === String(chosen));
}

function drawTable() {
  columns = every.filter(({ extra }) => !extra || byId("all-columns").checked);
  if (order && !columns.includes(order.column)) order = null;
  byId("columns").replaceChildren(...columns.map((column) => {
    const header = element("th", "", column.words ? "words" : "");
    const button = element("button", column.label);
    button.addEventListener("click", () => {
      const again = order && order.column === column;
      order = { column, upwards: again ? !order.upwards : Boolean(column.upwards) };
      drawRows();
    });
    header.append(button);
    return header;
  }));
  drawRows();
}
byId("all-columns").addEventListener("change", drawTable);
byId("filter").addEventListener("input", drawRows);
byId("more").addEventListener("click", () => { most = Infinity; drawRows(); });
drawTable();

// The maps.
if (quantities.length) {
  const menus = new Map();
  quantities.forEach(({ group, label }, index) => {
    if (!menus.has(group)) {
      menus.set(group, document.createElement("optgroup"));
      menus.get(group).label = group;
      byId("quantity").append(menus.get(group));
    }
    const option = element("option", label);
    option.value = index;
    menus.get(group).append(option);
  });
  byId("quantity").addEventListener("change", (event) => {
    quantity = quantities[event.target.value];
    choose(...chosen);
  });
  dark.addEventListener("change", () => { drawOverview(); choose(...chosen); });
  narrow.addEventListener("change", () => { drawOverview(); drawMap(); });
  const worst = all.reduce((first, row) => (row.grade > first.grade ? row : first), all[0]);
  drawOverview();
  choose(worst.layer, worst.head);
  if (quantities.some((one) => one.overview)) byId("overview").on("plotly_click", ({ points }) => { if (points[0].customdata) choose(...points[0].customdata); });
  const place = ({ points }) => [points[0].y, points[0].x];
  const real = ([layer, head]) => head < layers[layer].heads;
  byId("map").on("plotly_hover", (event) => { if (real(place(event))) show(...place(event)); });
  byId("map").on("plotly_unhover", () => show(...chosen));
  byId("map").on("plotly_click", (event) => { if (real(place(event))) choose(...place(event)); });
} else {
  byId("maps").hidden = true;
  byId("through").hidden = true;
}
