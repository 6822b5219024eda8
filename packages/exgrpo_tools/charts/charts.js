// The charts of the pages, drawn by Chart.js. A page defines the CSS variables --ink, --soft, --line, --card and --page,
// and --c0, --c1, ... for the colours of the series. Colours below are CSS colours, including `var(--c0)`.

const charts = (() => {
  "use strict";
  // 12,345, 0.667 and 0.0001234
  const DIGITS = { maximumFractionDigits: 3, maximumSignificantDigits: 4, roundingPriority: "morePrecision" };
  const isGap = (value) => value === null || value === undefined;
  const asText = (value) => (isGap(value) ? "none" : value.toLocaleString("en-US", DIGITS));

  /** The colour in a form that a canvas accepts. */
  function resolved(colour) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = colour;
    const { color } = getComputedStyle(probe);
    probe.remove();
    return color;
  }

  /** Calls `draw` now and whenever the reader switches between light and dark, since a canvas keeps its colours. */
  function keepDrawn(draw) {
    const redraw = () => {
      Object.values(Chart.instances).forEach((chart) => chart.destroy());
      setDefaults();
      draw();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    redraw();
  }

  function setDefaults() {
    const defaults = Chart.defaults;
    defaults.animation = false;
    defaults.maintainAspectRatio = false;
    defaults.locale = "en-US";
    defaults.font.family = "system-ui, sans-serif";
    defaults.color = resolved("var(--soft)");
    defaults.borderColor = resolved("var(--line)");
    defaults.interaction = { mode: "index", axis: "x", intersect: false };
    Object.assign(defaults.scale.ticks, { format: DIGITS, maxRotation: 0 }); // also the format of tips
    Object.assign(defaults.elements.line, { borderWidth: 2, borderCapStyle: "round", borderJoinStyle: "round" });
    Object.assign(defaults.plugins.tooltip, {
      backgroundColor: resolved("var(--ink)"),
      titleColor: resolved("var(--page)"),
      bodyColor: resolved("var(--page)"),
      displayColors: false,
    });
    Object.assign(defaults.plugins.legend, { position: "bottom", align: "start" });
    Object.assign(defaults.plugins.legend.labels, { usePointStyle: true, boxHeight: 8, padding: 8 });
  }

  /** Appends a chart to `box`, `height` pixels high; `label` is its text for screen readers. */
  function add(box, height, label, config) {
    const plot = document.createElement("div");
    plot.style.cssText = `position: relative; height: ${height}px`;
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    plot.append(canvas);
    box.append(plot);
    return new Chart(canvas, config);
  }

  /** At most `count` ticks, only at whole numbers if the values are whole. */
  const upTo = (count, whole) => ({ maxTicksLimit: count, ...(whole ? { precision: 0 } : {}) });

  /** Ticks at these values. */
  const ticksAt = (values) => (axis) => { axis.ticks = values.map((value) => ({ value })); };

  function curve({ name, values, colour, shape }) {
    // a point between two gaps has no line
    const alone = (i) => !isGap(values[i]) && isGap(values[i - 1]) && isGap(values[i + 1]);
    return {
      label: name,
      data: values,
      borderColor: resolved(colour),
      backgroundColor: resolved(colour),
      pointStyle: shape ?? "circle",
      pointRadius: shape ? 4 : values.map((_, i) => (alone(i) ? 1.5 : 0)),
      pointHoverRadius: shape ? 5 : 3,
      pointHoverBackgroundColor: resolved(colour),
    };
  }

  /** A curve of a stack; fills the area between it and the curve below. */
  function layer(series, index) {
    return { ...curve(series), fill: index ? "-1" : "origin", borderColor: resolved("var(--card)"), borderWidth: 0.6 };
  }

  /**
   * Curves over x, which are numbers or names.
   * series: {name, values, colour, shape} each; null is a gap. Points are marked if there is a shape.
   * options: height; stacked; top, the least upper end of y; fromZero (true); xName, text before x in a tip.
   */
  function lines(box, title, x, series, { height = 225, stacked = false, top, fromZero = true, xName = "" } = {}) {
    const whole = series.every(({ values }) => values.every((value) => isGap(value) || Number.isInteger(value)));
    const last = series.map(({ name, values }) => `${name} ${asText(values.at(-1))}`).join(", ");
    const overNumbers = { type: "linear", min: x[0], max: x.at(-1), ticks: { precision: 0 } };
    return add(box, height, `${title}. Last values: ${last}.`, {
      type: "line",
      data: { labels: x, datasets: series.map(stacked ? layer : curve) },
      options: {
        scales: {
          x: { ...(typeof x[0] === "number" ? overNumbers : { type: "category" }), grid: { display: false } },
          y: { stacked, beginAtZero: fromZero, suggestedMax: top, ticks: upTo(6, whole) },
        },
        plugins: {
          tooltip: {
            callbacks: { title: ([item]) => xName + item.label },
            itemSort: stacked ? (one, other) => other.datasetIndex - one.datasetIndex : undefined,
          },
        },
      },
    });
  }

  /**
   * Bars between equidistant edges, one more than counts. nameOf(i) is a bar's name in tips.
   * ticks: positions of the ticks of x; default: round numbers.
   */
  function bars(box, title, { edges, counts, colours, nameOf, ticks }) {
    const whole = Number.isInteger(edges[1] - edges[0]);
    const fill = colours.map(resolved);
    const bar = (i) => `${nameOf(i)}: ${asText(counts[i])}`;
    const roundTicks = { ticks: { includeBounds: false, ...upTo(11, whole) } };
    const over = { min: edges[0], max: edges.at(-1), ...(ticks ? { afterBuildTicks: ticksAt(ticks) } : roundTicks) };
    return add(box, 190, `${title}. ${counts.map((_, i) => bar(i)).join("; ")}.`, {
      type: "bar",
      data: {
        labels: counts.map((_, i) => (edges[i] + edges[i + 1]) / 2),
        datasets: [{ data: counts, backgroundColor: fill, hoverBackgroundColor: fill, borderRadius: 1.5 }],
      },
      options: {
        barPercentage: 0.94,
        categoryPercentage: 1,
        scales: {
          x: { type: "linear", offset: false, ...over, grid: { display: false } },
          y: { beginAtZero: true, suggestedMax: 1, ticks: upTo(6, true) },
        },
        plugins: {
          legend: { display: false },
          tooltip: { callbacks: { title: () => "", label: (item) => bar(item.dataIndex) } },
        },
      },
    });
  }

  /**
   * Dots with their intervals, with a line for each of `rows`.
   * series: {name, colour, found} each, where found has {value, low, high} for each row.
   */
  function intervals(box, title, rows, series) {
    const text = ({ name, found }, row) => {
      const [value, low, high] = ["value", "low", "high"].map((key) => found[row][key].toFixed(3));
      return `${name}: ${value} (${low} to ${high})`;
    };
    const all = rows.map((name, row) => `${name}: ${series.map((own) => text(own, row)).join(", ")}`);
    // four points per row: the interval's two ends with the value between them, then a gap
    const perRow = (points) => rows.flatMap((_, row) => points(row));
    const rowOf = (item) => Math.floor(item.dataIndex / 4);
    const datasets = series.map(({ name, colour, found }, place) => {
      const y = (row) => row + 0.24 * (place - (series.length - 1) / 2);
      const ends = (row) => [found[row].low, found[row].value, found[row].high, null];
      return {
        label: name,
        data: perRow((row) => ends(row).map((x) => ({ x, y: y(row) }))),
        borderColor: resolved(colour),
        backgroundColor: resolved(colour),
        pointRadius: perRow(() => [0, 4, 0, 0]),
        pointHoverRadius: perRow(() => [0, 6, 0, 0]),
        clip: false, // draws dots at 0 or 1 completely
      };
    });
    return add(box, 46 * rows.length + 70, `${title}. ${all.join("; ")}.`, {
      type: "line",
      data: { datasets },
      options: {
        interaction: { mode: "nearest", axis: "y" },
        scales: {
          x: { type: "linear", min: 0, max: 1 },
          y: {
            type: "linear",
            min: -0.5,
            max: rows.length - 0.5,
            reverse: true,
            afterBuildTicks: ticksAt([...rows.keys()]),
            ticks: { callback: (row) => rows[row], autoSkip: false, color: resolved("var(--ink)") },
            grid: { display: false },
          },
        },
        plugins: {
          legend: { position: "top" },
          tooltip: {
            filter: (item) => item.dataIndex % 4 === 1,
            callbacks: {
              title: ([item]) => rows[rowOf(item)],
              label: (item) => text(series[item.datasetIndex], rowOf(item)),
            },
          },
        },
      },
    });
  }

  return { keepDrawn, lines, bars, intervals };
})();
