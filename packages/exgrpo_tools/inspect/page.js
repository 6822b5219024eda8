"use strict";
// Draws the page from the embedded JSON. Text from models and data files is only ever set as text.
// pool_charts.js follows.
const data = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const K = data.rollout_n;
const PER_PAGE = 20; // questions
const OPEN_TOKENS = 4000; // responses are unfolded, from the top, until this many tokens are drawn

function make(name, attributes, ...children) {
  const node = document.createElement(name);
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

// -- colours: buckets range from red, solved by few rollouts, to blue, solved by most
const bucketColour = (bucket) => `oklch(var(--light) var(--chroma) ${Math.round(25 + (235 * bucket) / K)})`;

// -- the tip that follows the pointer over tokens
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

// -- trajectories
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const ALL = data.questions.flatMap((question) => question.trajectories);
const scored = ALL.some((trajectory) => trajectory.now);
for (const question of data.questions) {
  question.haystack = [question.id, question.text, question.gold, ...question.trajectories.map((t) => t.pieces.join(""))].join("\n").toLowerCase();
}
const lowest = (key) => (question) => Math.min(...question.trajectories.map((t) => key(t) ?? Infinity));
const highest = (key) => (question) => -Math.max(...question.trajectories.map((t) => key(t) ?? -Infinity));
const ORDERS = {
  "as drawn": null,
  "fewest successes": (question) => question.bucket,
  "most successes": (question) => -question.bucket,
  "lowest entropy": lowest((t) => t.entropy),
  "highest entropy": highest((t) => t.entropy),
  "oldest": lowest((t) => t.step),
  "newest": highest((t) => t.step),
  "longest": highest((t) => t.pieces.length),
  "least likely then": highest((t) => t.then && mean(t.then)),
  ...(scored ? { "least likely now": highest((t) => t.now && mean(t.now)), "lowest effective sample size": lowest((t) => t.ess) } : {}),
};
const THEN = "log-prob then", NOW = "log-prob now", RATIO = "ratio now / then", PLAIN = "none";
const COLOURS = scored ? [THEN, NOW, RATIO, PLAIN] : [THEN, PLAIN];
const LEGENDS = {
  [THEN]: ["1", "linear-gradient(90deg, transparent, rgba(var(--hot), .75))", "≤ .03"],
  [NOW]: ["1", "linear-gradient(90deg, transparent, rgba(var(--hot), .75))", "≤ .03"],
  [RATIO]: ["≤ 1/2", "linear-gradient(90deg, rgba(var(--cool), .75), transparent, rgba(var(--hot), .75))", "≥ 2"],
};

function tint(trajectory, i) {
  const mode = at("colour").value, then = trajectory.then && trajectory.then[i], now = trajectory.now && trajectory.now[i];
  if (mode === RATIO && trajectory.then && trajectory.now) {
    const log = (then - now) / 1000 / Math.LN2; // values are negative log-probs
    return `rgba(var(--${log > 0 ? "hot" : "cool"}), ${(0.75 * Math.min(1, Math.abs(log))).toFixed(2)})`;
  }
  const value = mode === THEN ? then : mode === NOW ? now : null;
  return value === null || value === undefined ? "" : `rgba(var(--hot), ${(0.75 * Math.min(1, Math.sqrt(Math.max(0, value) / 3500))).toFixed(2)})`;
}

function tokenTip(trajectory, i) {
  const lines = [`${JSON.stringify(trajectory.pieces[i])}   token ${i + 1} of ${trajectory.pieces.length}`];
  for (const [name, values] of [["then", trajectory.then], ["now", trajectory.now]]) {
    if (values) lines.push(`${name}: log-prob ${(-values[i] / 1000).toFixed(3)}, probability ${short(Math.exp(-values[i] / 1000))}`);
  }
  if (trajectory.then && trajectory.now) lines.push(`importance ratio ${short(Math.exp((trajectory.then[i] - trajectory.now[i]) / 1000), 4)}`);
  return lines.join("\n");
}

function drawTokens(box, trajectory) {
  box.replaceChildren(...trajectory.pieces.map((piece, i) => {
    const token = make("span", {}, piece);
    if (piece === "") token.className = "part";
    else if (piece.includes("\n")) token.className = "line";
    token.style.background = tint(trajectory, i);
    token.addEventListener("mousemove", (event) => showTip(event, tokenTip(trajectory, i)));
    return token;
  }));
  box.addEventListener("mouseleave", hideTip);
}

function drawTrajectory(trajectory, open) {
  const cells = [["step", trajectory.step], ["tokens", trajectory.pieces.length], ["entropy", trajectory.entropy]];
  cells.push(["mean log-prob then", trajectory.then && -mean(trajectory.then) / 1000]);
  if (trajectory.now) cells.push(["now", -mean(trajectory.now) / 1000], ["mean ratio", trajectory.ratio], ["effective sample size", trajectory.ess]);
  const summary = make("summary", {}, ...cells.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, short(value)))));
  const box = make("div", { class: "tokens" });
  const details = make("details", { class: "trajectory" }, summary, box);
  details.addEventListener("toggle", () => { if (details.open) drawTokens(box, trajectory); });
  if (open) { details.open = true; drawTokens(box, trajectory); }
  return details;
}

function drawQuestion(question, budget) {
  const pill = make("span", { class: "pill", style: `background:${bucketColour(question.bucket)}` }, `${question.bucket} of ${K}`);
  const about = make("div", { class: "about" });
  if (question.gold !== null) about.append(make("span", {}, "gold ", make("b", {}, question.gold)));
  const part = question.trajectories.length < question.held ? `${question.trajectories.length} of ` : "";
  about.append(make("span", {}, `${part}${question.held} ${question.held === 1 ? "trajectory" : "trajectories"}`), make("span", { class: "mono" }, question.id));
  const text = make("div", { class: "question" }, question.text ?? "(its text is not in --train_files)");
  const rows = question.trajectories.map((trajectory) => {
    budget.tokens -= trajectory.pieces.length;
    return drawTrajectory(trajectory, budget.tokens >= 0);
  });
  return make("article", {}, make("header", {}, pill, text, about), ...rows);
}

let shown = PER_PAGE;
function drawList() {
  const words = at("search").value.toLowerCase().trim(), bucket = at("bucket").value, key = ORDERS[at("order").value];
  const matches = data.questions.filter((q) => (bucket === "all" || String(q.bucket) === bucket) && q.haystack.includes(words));
  if (key) matches.sort((a, b) => key(a) - key(b) || 0);
  const budget = { tokens: OPEN_TOKENS };
  at("list").replaceChildren(...matches.slice(0, shown).map((question) => drawQuestion(question, budget)));
  at("count").textContent = matches.length ? `${count(Math.min(shown, matches.length))} of ${count(matches.length)} questions` : "No question matches.";
  at("more").hidden = matches.length <= shown;
  const legend = LEGENDS[at("colour").value];
  at("legend").replaceChildren(...(legend ? [legend[0], make("i", { style: `background:${legend[1]}` }), legend[2]] : []));
}

function drawTools() {
  const option = (value, text) => make("option", { value }, text ?? value);
  const buckets = [...new Set(data.questions.map((question) => question.bucket))].sort((a, b) => a - b);
  at("bucket").append(option("all"), ...buckets.map((k) => option(k, `${k} of ${K} (${data.questions.filter((q) => q.bucket === k).length})`)));
  at("order").append(...Object.keys(ORDERS).map((name) => option(name)));
  at("colour").append(...COLOURS.map((name) => option(name)));
  const restart = () => { shown = PER_PAGE; drawList(); };
  for (const id of ["bucket", "order", "colour"]) at(id).addEventListener("change", restart);
  at("search").addEventListener("input", restart);
  at("more").addEventListener("click", () => { shown += PER_PAGE; drawList(); });
}

function drawHead() {
  const { sample, totals } = data;
  document.title = `Experience pool, step ${data.step}`;
  at("step").textContent = `after step ${count(data.step)}`;
  at("folder").textContent = data.folder;
  at("tiles").append(...Object.entries(data.tiles).map(([name, value]) => make("div", {}, make("b", {}, value), make("span", {}, name))));
  at("facts").append(...Object.entries(data.facts).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  const all = sample.trajectories === totals.trajectories;
  const part = `A sample: ${count(sample.trajectories)} of ${count(totals.trajectories)} trajectories, those of ${count(sample.questions)} of ${count(totals.questions)} questions, drawn with seed ${sample.seed}. `;
  const model = data.model === null ? "" : ` "Now" is under ${data.model}, at temperature 1.`;
  at("sample").textContent = `${all ? `All ${count(totals.trajectories)} trajectories. ` : part}A token's colour shows how unlikely it was under the policy that generated it; hover over one for the numbers.${model}`;
}

drawHead();
drawTools();
drawList();
charts.keepDrawn(drawCharts);
