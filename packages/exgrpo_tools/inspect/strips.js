// What replay did: a strip for each question, a cell for each step, a card for each cell. page.js, included before this
// file, has the helpers.

const REPLAYED = 1, FOUND = 2, WHOLE = 3; // kinds of cells, as in strips.py; 0: asked
const hasDot = (kind) => kind === REPLAYED || kind === WHOLE;

function cellWords([step, right, of, kind]) {
  if (kind === FOUND) return `step ${step}: asked; a right answer of this step is still stored`;
  if (kind === WHOLE) return `step ${step}: a whole past group was replayed, ${right} of ${of} right`;
  const known = right === null ? "how many new ones were right is not known" : `${right} of ${of} new rollouts right`;
  return `step ${step}: ${kind === REPLAYED ? "a past answer was replayed; " : "asked; "}${known}`;
}

function drawCell(cell, first, span) {
  const [step, right, of, kind] = cell;
  const left = (100 * (step - first)) / span;
  const colour = right === null ? "" : `background:${bucketColour((right * K) / of)};`;
  const classes = [hasDot(kind) ? "replayed" : "", right === null ? "unknown" : ""].join(" ").trim();
  return make("button", {
    type: "button", tabindex: "-1", class: classes, "aria-label": cellWords(cell),
    style: `${colour}left:${left}%;width:max(${100 / span}% - 1px, 4px)`,
  });
}

function aboutRows(lines) {
  const list = make("dl", {});
  for (const line of lines) list.append(make("dt", {}, line.slice(0, 16).trim()), make("dd", {}, line.slice(16)));
  return list;
}

function drawCard(question, cell, close) {
  const card = data.strips.cards[cell[4]];
  const shut = make("button", { type: "button", "aria-label": "Close" }, "×");
  shut.addEventListener("click", close);
  const text = question.text ?? question.id;
  const box = make("div", { class: "card" }, make("header", {}, make("b", {}, cellWords(cell)), shut));
  box.append(make("p", { class: "question" }, question.gold === null ? text : `${text}   gold ${question.gold}`));
  const parts = make("div", { class: "parts" });
  if (card.rollouts.length) {
    // the past answer first, then the new ones
    const order = [...card.rollouts].sort((one, other) => other[2] - one[2]);
    const rows = order.map(([response, right, past]) => make("li", past ? { class: "past" } : {},
      make("span", { class: right ? "right" : "wrong" }, right ? "✓" : "✗"),
      make("span", { class: "who" }, past ? "past" : "new"), make("code", {}, response)));
    parts.append(make("ol", {}, ...rows));
  } else {
    parts.append(make("p", { class: "note" }, data.strips.with_rollouts
      ? "Its rollouts are left out, to keep the page small."
      : "Its rollouts are shown with --rollouts FOLDER, the run's trainer.rollout_data_dir."));
  }
  if (card.about.length) parts.append(aboutRows(card.about));
  box.append(parts);
  return box;
}

let openCell = null;
function closeCard() {
  document.querySelectorAll(".card").forEach((card) => card.remove());
  openCell?.classList.remove("open");
  openCell = null;
}

function showCard(question, cell, node, row) {
  const again = node === openCell;
  closeCard();
  if (again || cell[4] === null) return;
  openCell = node;
  node.classList.add("open");
  row.after(drawCard(question, cell, closeCard));
}

function drawStrip(question, first, span) {
  const times = question.cells.filter(([, , , kind]) => hasDot(kind)).length;
  const label = make("div", { class: "label" }, make("span", {}, question.text ?? question.id),
    make("i", {}, `${times} × replayed, ${question.state}`));
  const nodes = question.cells.map((cell) => drawCell(cell, first, span));
  const lane = make("div", { class: "lane" }, ...nodes);
  const row = make("div", { class: "strip" }, label, lane);
  nodes.forEach((node, i) => {
    const cell = question.cells[i];
    node.addEventListener("click", () => showCard(question, cell, node, row));
    node.addEventListener("mousemove", (event) => showTip(event, cellWords(cell)));
    node.addEventListener("mouseleave", hideTip);
  });
  nodes[0]?.setAttribute("tabindex", "0");
  lane.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) nodes[nodes.indexOf(document.activeElement) + move]?.focus();
  });
  return row;
}

function drawAxis(first, span) {
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((gap) => span / gap <= 9) ?? 10000;
  const ticks = [];
  for (let step = Math.ceil(first / every) * every; step < first + span; step += every) {
    ticks.push(make("span", { style: `left:${(100 * (step - first + 0.5)) / span}%` }, count(step)));
  }
  return make("div", { class: "strip axis" }, make("div", { class: "label" }, "step"), make("div", { class: "lane" }, ...ticks));
}

function drawStrips() {
  const strips = data.strips;
  if (!strips || !strips.questions.length) return;
  at("replay").hidden = false;
  const first = Math.min(...strips.questions.flatMap(({ cells }) => cells.map(([step]) => step)));
  const span = strips.last - first + 1;
  const shown = strips.questions.length;
  const part = shown < strips.total ? `The ${count(shown)} most often replayed of ${count(strips.total)}. ` : "";
  const missing = strips.with_rollouts ? "" : " Grey: asked, and an answer is still stored; all other steps that asked are known from --rollouts.";
  at("strips-note").append(
    `${part}A line is a question, a cell a step that asked it; its colour is how many of the new rollouts were right, `,
    make("span", { class: "keys" }, ...[...Array(K + 1).keys()].map((k) => make("i", { style: `background:${bucketColour(k)}` }, k))),
    ` of ${K}. A dot: a past answer was replayed among them. Click a cell.${missing}`,
  );
  at("strips").append(drawAxis(first, span), ...strips.questions.map((question) => drawStrip(question, first, span)));
}

drawStrips();
