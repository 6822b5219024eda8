"use strict";
// Draws the page from the JSON in it. What models and data files wrote is only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const K = data.rollout_n;

function make(name, attributes, ...children) {
  const svg = ["svg", "path", "line", "rect", "text", "g"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const count = (number) => number.toLocaleString("en-US");
function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return count(value);
  return Math.abs(value) >= 100 ? count(Math.round(value)) : String(Number(value.toPrecision(digits)));
}

// -- colours: a bucket's runs from red, solved by few rollouts, to blue, solved by most
const bucketColour = (bucket) => `oklch(var(--light) var(--chroma) ${Math.round(25 + (235 * bucket) / K)})`;
const seriesColour = (index) => `var(--c${index % 5})`;

// -- the tip that follows the pointer
function showTip(event, text) {
  const tip = at("tip");
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const above = event.clientY + 18 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${above ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
}
const hideTip = () => { at("tip").hidden = true; };

// -- charts
const WIDE = 740, NORMAL = 350, NARROW = 260; // in the SVG's units, about pixels
const BOX = { left: 44, right: 10, top: 8, bottom: 22 };

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(10)));
  return found;
}

function frame(title, note, width, x, y, whole) {
  const height = 190;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const px = (value) => BOX.left + ((value - x[0]) / (x[1] - x[0] || 1)) * (width - BOX.left - BOX.right);
  const py = (value) => height - BOX.bottom - ((value - y[0]) / (y[1] - y[0] || 1)) * (height - BOX.top - BOX.bottom);
  for (const tick of ticks(y[0], y[1], 4).filter((value) => !whole.y || Number.isInteger(value))) {
    svg.append(make("line", { class: "rule", x1: BOX.left, x2: width - BOX.right, y1: py(tick), y2: py(tick) }));
    svg.append(make("text", { x: BOX.left - 6, y: py(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const tick of ticks(x[0], x[1], width / 55).filter((value) => !whole.x || Number.isInteger(value))) {
    svg.append(make("text", { x: px(tick), y: height - 6, "text-anchor": "middle" }, short(tick)));
  }
  const caption = make("figcaption", {}, make("b", {}, title), make("span", {}, note));
  const figure = make("figure", width === WIDE ? { class: "wide" } : {}, caption, svg);
  return { figure, svg, px, py, width, height };
}

function keys(names, colour) {
  const entry = (name, index) => make("span", {}, make("i", { style: `background:${colour(index)}` }), name);
  return make("div", { class: "keys" }, ...names.map(entry));
}

function overTime(title, note, series, options = {}) {
  const steps = data.history.step || [];
  const known = series.filter(([, metric]) => data.history[metric]);
  if (steps.length < 2 || known.length === 0) return null;
  const rows = known.map(([, metric]) => data.history[metric]);
  const stacked = options.stacked ? rows.map((_, top) => steps.map((_, i) => rows.slice(0, top + 1).reduce((sum, row) => sum + (row[i] || 0), 0))) : rows;
  const values = stacked.flat().filter((value) => value !== null);
  const low = options.fromData ? Math.min(...values) : 0;
  const high = Math.max(options.top || 0, ...values);
  const chart = frame(title, note, options.stacked ? WIDE : NORMAL, [steps[0], steps.at(-1)], [low, high > low ? high : low + 1], { x: true, y: values.every(Number.isInteger) });
  const colour = options.stacked ? bucketColour : seriesColour;
  stacked.forEach((row, index) => {
    if (options.stacked) {
      const upper = row.map((value, i) => `${chart.px(steps[i])},${chart.py(value)}`);
      const lower = steps.map((step, i) => `${chart.px(step)},${chart.py(index ? stacked[index - 1][i] : 0)}`).reverse();
      chart.svg.append(make("path", { class: "area", d: `M${upper.join("L")}L${lower.join("L")}Z`, style: `fill:${colour(index)}` }));
      return;
    }
    let path = "", open = false;
    row.forEach((value, i) => { // a gap ends the line; a point by itself is a dot
      if (value !== null) path += `${open ? "L" : "M"}${chart.px(steps[i])},${chart.py(value)}${open ? "" : "h0"}`;
      open = value !== null;
    });
    chart.svg.append(make("path", { class: "curve", d: path, style: `stroke:${colour(index)}` }));
  });
  follow(chart, steps, known, rows);
  chart.figure.append(keys(known.map(([name]) => name), colour));
  return chart.figure;
}

function follow(chart, steps, known, rows) {
  const cursor = make("line", { class: "cursor", y1: BOX.top, y2: chart.height - BOX.bottom, visibility: "hidden" });
  chart.svg.append(cursor);
  chart.svg.addEventListener("mousemove", (event) => {
    const area = chart.svg.getBoundingClientRect();
    const x = ((event.clientX - area.left) / area.width) * chart.width;
    const nearest = steps.reduce((best, step, i) => (Math.abs(chart.px(step) - x) < Math.abs(chart.px(steps[best]) - x) ? i : best), 0);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, chart.px(steps[nearest]));
    cursor.setAttribute("visibility", "visible");
    showTip(event, [`step ${short(steps[nearest])}`, ...known.map(([name], i) => `${name}: ${short(rows[i][nearest], 4)}`)].join("\n"));
  });
  chart.svg.addEventListener("mouseleave", () => { hideTip(); cursor.setAttribute("visibility", "hidden"); });
}

function bars(title, note, edges, counts, name, colour) {
  const whole = Number.isInteger(edges[1] - edges[0]);
  const chart = frame(title, note, NARROW, [edges[0], edges.at(-1)], [0, Math.max(1, ...counts)], { x: whole, y: true });
  counts.forEach((size, i) => {
    const left = chart.px(edges[i]), right = chart.px(edges[i + 1]);
    const top = chart.py(size), height = chart.py(0) - top;
    const bar = make("rect", { x: left + 0.5, width: Math.max(0.5, right - left - 1), y: top, height, rx: 1.5, style: `fill:${colour ? colour(i) : "var(--c0)"}` });
    bar.addEventListener("mousemove", (event) => showTip(event, `${name(i)}: ${count(size)}`));
    bar.addEventListener("mouseleave", hideTip);
    chart.svg.append(bar);
  });
  return chart.figure;
}

function drawCharts() {
  const buckets = [...Array(K + 1).keys()];
  at("time").append(...[
    overTime("Questions by successes", `how many of its last ${K} rollouts solved a question of the pool`, buckets.map((k) => [`${k}`, `bucket_${k}`]), { stacked: true }),
    overTime("Questions", "in the pool; retired, since every rollout solved them", [["in the pool", "pool_questions"], ["retired", "retired_questions"]]),
    overTime("Ages", "steps since a trajectory was written", [["pool, median", "age_median"], ["pool, 95 %", "age_p95"], ["replayed, mean", "replay_age"], ["replayed, 95 %", "replay_age_p95"]]),
    overTime("Selection", "score now (mean token entropy, or perplexity) of candidates, where there were several", [["chosen", "chosen_score"], ["passed over", "passed_over_score"]]),
    overTime("Correct", "share of a step's fresh rollouts", [["fresh_score", "fresh_score"]], { top: 1 }),
    overTime("Importance ratios", "of replayed tokens, before the update", [["5 %", "ratio_p05"], ["median", "ratio_median"], ["95 %", "ratio_p95"], ["mean", "ratio_mean"]], { fromData: true }),
    overTime("Use of replayed tokens", "effective sample size; share with a ratio beyond 2 or 1/2", [["effective sample size", "ratio_ess"], ["beyond 2", "ratio_beyond_2"]], { top: 1 }),
    overTime("Evicted", "trajectories since the start, by the bound that pushed them out", [["per question", "evicted_by_question"], ["size", "evicted_by_size"], ["age", "evicted_by_age"]]),
  ].filter((figure) => figure !== null));
  if (!at("time").childElementCount) at("time").replaceWith(make("p", { class: "note" }, "This pool has no history: fewer than two steps were noted."));
  at("now").append(
    bars("Questions by successes", `out of ${K}`, [...buckets, K + 1].map((k) => k - 0.5), data.sizes, (k) => `${k} of ${K}`, bucketColour),
    ...data.histograms.map((h) => bars(h.title, h.unit + (h.unknown ? `; ${count(h.unknown)} unknown` : ""), h.edges, h.counts, (i) => `${short(h.edges[i])} to ${Number.isInteger(h.edges[1] - h.edges[0]) ? short(h.edges[i + 1] - 1) : short(h.edges[i + 1])}`)),
  );
}
