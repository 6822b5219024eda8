// The page's charts. exgrpo/charts/charts.js draws them; page.js, included before this file, has the helpers.

/** Append a figure with its caption to the section; a chart is drawn into it. */
function figure(section, title, note, wide = false) {
  const caption = make("figcaption", {}, make("b", {}, title), make("span", {}, note));
  const box = make("figure", wide ? { class: "wide" } : {}, caption);
  at(section).append(box);
  return box;
}

/** Draw metrics of the history over steps: the [name, metric] pairs that it has; nothing if it has none. */
function overTime(title, note, metrics, options = {}) {
  const known = metrics.filter(([, metric]) => data.history[metric]);
  if (known.length === 0) return;
  const series = known.map(([name, metric], index) => ({
    name,
    values: data.history[metric],
    colour: options.stacked ? bucketColour(Number(name)) : `var(--c${index})`,
  }));
  const box = figure("time", title, note, options.stacked);
  charts.lines(box, title, data.history.step, series, { xName: "step ", ...options });
}

function drawHistory() {
  const buckets = [...Array(K + 1).keys()].map((k) => [`${k}`, `bucket_${k}`]);
  const note = `of its latest collected group of ${K} rollouts, by which a question of the pool is filed`;
  overTime("Questions by successes", note, buckets, {
    stacked: true,
    height: Math.max(225, 60 + 16 * buckets.length), // room for a tip with one line per bucket
  });
  overTime("Questions", "in the pool; retired, since every rollout solved them", [
    ["in the pool", "pool_questions"],
    ["retired", "retired_questions"],
  ]);
  overTime("Ages", "steps since a trajectory was generated", [
    ["pool, median", "age_median"],
    ["pool, 95 %", "age_p95"],
    ["replayed, mean", "replay_age"],
    ["replayed, 95 %", "replay_age_p95"],
  ]);
  overTime("Selection", "score under the current policy (mean token entropy, or perplexity) of questions with several candidates", [
    ["chosen", "chosen_score"],
    ["passed over", "passed_over_score"],
  ]);
  overTime("Correct", "share of a step's fresh rollouts", [["fresh_score", "fresh_score"]], { top: 1 });
  overTime("Importance ratios", "of replayed tokens, before the update", [
    ["5 %", "ratio_p05"],
    ["median", "ratio_median"],
    ["95 %", "ratio_p95"],
    ["mean", "ratio_mean"],
  ], { fromZero: false });
  overTime("Use of replayed tokens", "effective sample size; share with a ratio beyond 2 or 1/2", [
    ["effective sample size", "ratio_ess"],
    ["beyond 2", "ratio_beyond_2"],
  ], { top: 1 });
  overTime("Evicted", "trajectories since the start, by the bound that evicted them", [
    ["per question", "evicted_by_question"],
    ["size", "evicted_by_size"],
    ["age", "evicted_by_age"],
  ], { top: 1 });
}

function drawHistogram(title, note, histogram) {
  charts.bars(figure("now", title, note), title, histogram);
}

function drawHistograms() {
  const buckets = [...Array(K + 1).keys()];
  drawHistogram("Questions by successes", `out of ${K}`, {
    edges: [...buckets, K + 1].map((k) => k - 0.5),
    counts: data.sizes,
    colours: buckets.map(bucketColour),
    nameOf: (k) => `${k} of ${K}`,
    ticks: buckets,
  });
  for (const { title, unit, unknown, edges, counts } of data.histograms) {
    const whole = Number.isInteger(edges[1] - edges[0]);
    const nameOf = (i) => `${short(edges[i])} to ${short(whole ? edges[i + 1] - 1 : edges[i + 1])}`;
    const note = unknown ? `${unit}; ${count(unknown)} unknown` : unit;
    drawHistogram(title, note, { edges, counts, colours: counts.map(() => "var(--c0)"), nameOf });
  }
}

function drawCharts() {
  at("time").replaceChildren();
  at("now").replaceChildren();
  if ((data.history.step ?? []).length > 1) drawHistory();
  else at("time").append(make("p", { class: "note" }, "This pool has no history: fewer than two steps were recorded."));
  drawHistograms();
}
