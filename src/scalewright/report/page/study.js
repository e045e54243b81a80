"use strict";
/* Okabe and Ito's colours, for any colour vision, then others as far from each other; report/figure_file.py has the same. */
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "var(--ink)", "#7711dd", "#775533", "#999955", "#555555", "#7755dd"];
/* A colour belongs to a value of an axis, such as a system, on the whole page: for lines and published marks, whatever is chosen. */
const coloured = new Map();
function colourOf(axis, value) {
  if (!coloured.has(axis)) coloured.set(axis, new Map());
  const values = coloured.get(axis);
  if (!values.has(value)) values.set(value, COLOURS[values.size % COLOURS.length]);
  return values.get(value);
}

function study(article) {
  const data = JSON.parse(article.querySelector("script.data").textContent);
  /* A chart is 520 units wide whatever the screen: on a phone its letters are drawn larger, as the style sheet says. */
  const FONT = matchMedia("(max-width: 40rem)").matches ? 16 : 12;
  const IS_WIDE = matchMedia("(min-width: 62rem)").matches;
  /* Series of one colour differ in their dashes. */
  const DASHES = ["", "6 3", "2 3", "10 3 2 3", "14 4", "1 5"];

  // --- which points are shown --------------------------------------------------------------------------------------
  const valuesOf = (axis) => [...new Set(data.points.map((point) => point.labels[axis] ?? ""))];
  const varying = data.axes.filter((axis) => valuesOf(axis).length > 1);
  const has = (point, name) => (point.predicted[name] && !point.problem) || point.measured[name] || point.published.some((told) => told.metric === name);
  /* A line needs three scales; points of shorter curves stand in rows. */
  const MIN_SCALES = 3;
  const scalesIn = (curve) => new Set(curve.points.filter((i) => data.metrics.some((m) => has(data.points[i], m.name))).map((i) => data.points[i].scale)).size;
  const lines = data.curves.filter((curve) => scalesIn(curve) >= MIN_SCALES);
  const isScaling = lines.length > 0;
  const groups = isScaling ? Object.keys(data.curves[0].group) : data.axes;
  const curveOf = (index) => data.curves.find((curve) => curve.points.includes(index));
  const groupOf = (index) => (isScaling && curveOf(index) ? curveOf(index).group : data.points[index].labels);
  const onLine = data.points.map((_, index) => lines.some((curve) => curve.points.includes(index)));
  const state = { chosen: {}, hidden: new Set(), logX: false, values: "auto", isOwn: false };
  const ofLines = data.points.map((_, i) => i).filter((i) => onLine[i]);
  const counts = groups.map((axis) => new Set(ofLines.map((i) => groupOf(i)[axis])).size);
  /* Lines differ in the axis with the most values; of equal ones, in the one that the study compares. */
  const most = Math.max(...counts), compares = data.compared_axis;
  const seriesAxis = !groups.length ? "" : groups.includes(compares) && counts[groups.indexOf(compares)] === most ? compares : groups[counts.indexOf(most)];
  if (isScaling) data.points.forEach((_, index) => colourOf(seriesAxis, groupOf(index)[seriesAxis]));
  const numCurves = new Set(ofLines.map((i) => JSON.stringify(groupOf(i)))).size;
  for (const axis of groups) state.chosen[axis] = isScaling && numCurves > 8 && axis !== seriesAxis ? groupOf(ofLines[0])[axis] : "";
  const scales = data.points.map((point) => point.scale).filter((s) => s !== null);
  if (scales.length && Math.max(...scales) / Math.min(...scales) >= 8) state.logX = true;
  const isChosen = (index, free) => groups.every((axis) => axis === free || !state.chosen[axis] || groupOf(index)[axis] === state.chosen[axis]);

  function controls() {
    const box = article.querySelector(".controls");
    box.replaceChildren();
    for (const axis of groups) {
      const values = [...new Set(data.points.map((_, i) => groupOf(i)[axis]))];
      if (values.length < 2) continue;
      const label = make("label", {}, box, axis + " ");
      const select = make("select", {}, label);
      make("option", { value: "" }, select, "all");
      for (const value of values) make("option", { value }, select, value);
      select.value = state.chosen[axis];
      select.addEventListener("change", () => { state.chosen[axis] = select.value; state.isOwn = true; draw(); });
    }
    const axes = make("select", { class: "values" }, make("label", {}, box, "values "));
    for (const [value, title] of [["auto", "automatic"], ["linear", "linear"], ["log", "logarithmic"]]) make("option", { value }, axes, title);
    axes.addEventListener("change", () => { state.values = axes.value; draw(); });
    if (!isScaling) return;
    const label = make("label", {}, box);
    const check = make("input", { type: "checkbox" }, label);
    check.checked = state.logX;
    label.append(" log " + data.scale_name);
    check.addEventListener("change", () => { state.logX = check.checked; draw(); });
  }

  /* `free`: an axis of which all values are taken, whatever is chosen. */
  function series(free) {
    const found = new Map(), open = groups.filter((axis) => axis === free || !state.chosen[axis]);
    const rest = (group) => open.filter((axis) => axis !== seriesAxis).map((axis) => group[axis]).join(", ");
    const rests = [...new Set(ofLines.map((index) => rest(groupOf(index))))];
    data.points.forEach((point, index) => {
      if (!isChosen(index, free) || (isScaling && !onLine[index])) return;
      const group = groupOf(index), name = isScaling ? open.map((axis) => group[axis]).filter(Boolean).join(", ") || data.title : "points";
      if (!found.has(name)) found.set(name, { name, key: group[seriesAxis], points: [], colour: isScaling ? colourOf(seriesAxis, group[seriesAxis]) : COLOURS[0], dash: isScaling ? DASHES[rests.indexOf(rest(group)) % DASHES.length] : "" });
      found.get(name).points.push(point);
    });
    return [...found.values()];
  }
  const isHidden = (one) => state.hidden.has(one.name) || state.hidden.has(one.key);
  /* A ratio is 1 at the points that all others are compared with: these say nothing, and are left out. */
  const isReference = (one) => one.points.every((point) => !point.predicted.ratio || point.predicted.ratio.value === 1);

  function legend(all) {
    const box = article.querySelector(".legend");
    box.replaceChildren();
    if (all.length < 2) return;
    for (const one of all) {
      const button = make("button", { type: "button", "aria-pressed": String(!state.hidden.has(one.name)) }, box);
      const swatch = make("svg", { class: "swatch", viewBox: "0 0 28 4", "aria-hidden": "true" }, button);
      make("line", { x1: 0, x2: 28, y1: 2, y2: 2, stroke: one.colour, "stroke-width": 3, "stroke-dasharray": one.dash }, swatch);
      button.append(one.name);
      button.addEventListener("click", () => {
        state.hidden.has(one.name) ? state.hidden.delete(one.name) : state.hidden.add(one.name);
        draw();
      });
    }
  }

  // --- marks ---------------------------------------------------------------------------------------------------------
  const labelsOf = (point) => Object.entries(point.labels).map(([k, v]) => k + " " + v).join(", ");
  /* What speaks against a measured point, for its tip; a point without doubts is drawn in full colour. */
  const doubtsOf = (point) => (point.doubts || []).map((doubt) => "in doubt: " + doubt.text);
  const PALE = 0.45, MAX_BANDS = 3, SAME = 1.005;
  const span = (n, metric) => (n.low !== null && n.high !== null && n.low !== n.high ? " (" + format(n.low, metric) + " to " + format(n.high, metric) + ")" : "");

  const titleOf = (metric, unit) => metric.title[0].toUpperCase() + metric.title.slice(1) + (unit.trim() ? " (" + unit.trim() + ")" : "");
  const ORIGINS = { predicted: COLOURS[0], measured: COLOURS[4], published: COLOURS[2] };
  const MAX_ROWS = 60;

  function marksOf(point, metric) {
    const found = [];
    if (point.predicted[metric.name] && !point.problem) found.push({ point, from: "predicted", n: point.predicted[metric.name] });
    if (point.measured[metric.name]) found.push({ point, from: "measured", n: point.measured[metric.name] });
    for (const told of point.published) if (told.metric === metric.name) found.push({ point, from: "published", n: told.number, told });
    return found;
  }

  const isNone = (value) => value === null || value === undefined;
  /* A published value; some sources print a bound only. */
  const toldOf = (n, metric) => (!isNone(n.low) && isNone(n.high) ? "above " : isNone(n.low) && !isNone(n.high) ? "below " : "") + format(n.value, metric);

  function wordsOf(mark, metric) {
    const words = [labelsOf(mark.point), mark.from + " " + metric.title + " " + (mark.told ? toldOf(mark.n, metric) : format(mark.n.value, metric)) + span(mark.n, metric)];
    if (mark.told) words.push(mark.told.note || "", mark.told.source);
    else if (mark.point.limit && mark.from === "predicted") words.push("most of the time: " + mark.point.limit);
    else if (mark.from === "measured") words.push(...doubtsOf(mark.point));
    return words.filter(Boolean).join("\n");
  }

  /* A mark by its origin: ring, dot or diamond. */
  function shape(svg, x, y, from, colour, pale, small) {
    const r = small ? 5 : 6;
    if (from === "published") return make("path", { d: `M${x},${y - r - 1}L${x + r},${y}L${x},${y + r + 1}L${x - r},${y}Z`, fill: small ? "none" : "var(--paper)", stroke: colour, "stroke-width": 2.5 }, svg);
    if (from === "measured") return make("circle", { cx: x, cy: y, r: small ? 4.5 : 6, fill: colour, "fill-opacity": pale ? PALE : 1, stroke: colour, "stroke-width": 1.5 }, svg);
    return make("circle", { cx: x, cy: y, r: small ? 4.5 : 3.5, fill: "var(--paper)", stroke: colour, "stroke-width": 2 }, svg);
  }

  /* Rows of marks, one below the other: { name, marks }. Long names stand above their row. */
  function rowsChart(parent, caption, rows, metric, choice, reference) {
    const numbers = rows.flatMap((row) => row.marks.map((m) => m.n));
    if (!numbers.length) return;
    const X = valueAxis(reference === undefined ? numbers : [...numbers, { value: 1.25 * reference }], metric, choice), some = rows.slice(0, MAX_ROWS);
    const figure = make("figure", {}, parent);
    make("figcaption", {}, figure, (caption || titleOf(metric, X.name)) + (rows.length > some.length ? `: ${some.length} of ${rows.length} points` : ""));
    /* Rows with long names take the width of the page, or stand below their names where it is narrow. */
    const longest = Math.max(...some.map((row) => row.name.length)) * FONT * 0.54 + 12, isLong = longest > 0.5 * 520;
    const isBroad = isLong && IS_WIDE, W = isBroad ? 1064 : 520, above = isLong && !isBroad;
    if (isBroad) figure.classList.add("wide");
    const cuts = some.map((row) => row.marks.filter((m) => X.cuts(Math.max(...ends(m.n)))));
    const cutWords = cuts.map((marks) => marks.map((m) => format(Math.max(...ends(m.n)), metric)).join(", "));
    const room = Math.max(...cutWords.map((words) => words.length));
    const L = above ? 8 : longest, R = room ? 24 + FONT * 0.54 * room : 16, T = 6, B = 28, STEP = above ? 2 * FONT + 10 : FONT + 8, H = T + B + STEP * some.length;
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Chart of " + (caption || metric.title) }, figure);
    const px = (v) => L + X.at(v) * (W - L - R), py = (at) => T + STEP * (at + (above ? 0.72 : 0.5));
    /* Names above their rows interrupt the lines of the grid: no letter is crossed. */
    function upright(kind, x) {
      const dash = kind === "axis" ? { "stroke-dasharray": "4 3" } : {};
      if (!above) make("line", { class: kind, x1: x, x2: x, y1: T, y2: H - B, ...dash }, svg);
      else some.forEach((_, at) => make("line", { class: kind, x1: x, x2: x, y1: T + STEP * at + FONT + 5, y2: T + STEP * (at + 1), ...dash }, svg));
    }
    for (const tick of X.ticks) {
      upright("grid", px(tick * X.size));
      make("text", { x: px(tick * X.size), y: H - B + 16, "text-anchor": "middle" }, svg, tidy(tick));
    }
    if (reference !== undefined) upright("axis", px(reference));
    some.forEach((row, at) => {
      make("text", above ? { class: "halo", x: 0, y: T + STEP * at + FONT } : { x: L - 8, y: py(at) + 4, "text-anchor": "end" }, svg, row.name);
      if (cuts[at].length) arrow(svg, px(Infinity), py(at), colourOfMark(cuts[at][0]), cutWords[at], true);
      for (const m of row.marks) {
        const y = py(at), bar = ends(m.n), colour = colourOfMark(m), furthest = Math.max(...bar);
        if (bar.length > 1) make("line", { x1: px(Math.min(...bar)), x2: px(furthest), y1: y, y2: y, stroke: colour, "stroke-width": m.from === "predicted" ? 6 : 1.5, opacity: m.from === "predicted" ? 0.25 : 1 }, svg);
        tip(figure, shape(svg, px(m.n.value), y, m.from, colour, m.from === "measured" && doubtsOf(m.point).length, true), m.words || wordsOf(m, metric));
      }
    });
  }

  /* On a page with lines a mark has the colour of its line; on a page of rows alone, that of its origin. */
  const colourOfMark = (m) => (isScaling ? colourOf(seriesAxis, groupOf(data.points.indexOf(m.point))[seriesAxis]) : ORIGINS[m.from]);

  /* A bar that goes on beyond the axis: an arrow, and where it ends. */
  function arrow(svg, x, y, colour, text, across) {
    const d = across ? `M${x},${y - 5}L${x + 8},${y}L${x},${y + 5}Z` : `M${x - 5},${y}L${x},${y - 8}L${x + 5},${y}Z`;
    make("path", { d, fill: colour, class: "cut" }, svg);
    make("text", across ? { x: x + 11, y: y + 4 } : { x: x + 8, y: y + 4, class: "halo" }, svg, text);
  }

  const nameOf = (point) => (varying.length ? varying : data.axes).map((axis) => (/^\d+(\.\d+)?$/.test(point.labels[axis] || "") ? axis + " " : "") + (point.labels[axis] || "")).filter((text) => text.trim()).join(", ");

  function dots(parent, metric, points) {
    const rows = points.filter((point) => has(point, metric.name)).map((point) => ({ name: nameOf(point), marks: marksOf(point, metric) }));
    rowsChart(parent, "", rows, metric, state.values);
  }

  /* Every published figure with its prediction, as a ratio: one chart for all metrics, until somebody chooses points. */
  function compared(parent) {
    const rows = [];
    data.points.forEach((point, index) => {
      if ((state.isOwn && !isChosen(index)) || point.problem) return;
      for (const told of point.published) {
        const metric = data.metrics.find((m) => m.name === told.metric), ours = point.predicted[told.metric];
        if (!metric || !ours) continue;
        const base = nearest(told.number, ours.value), over = (v) => (isNone(v) ? null : v / base);
        if (!base) continue;
        const words = [labelsOf(point), `${metric.title}: predicted ${format(ours.value, metric)}${span(ours, metric)}, published ${toldOf(told.number, metric)}`, told.note || "", told.source];
        rows.push({ name: nameOf(point), title: metric.title, marks: [{ point, from: "predicted", n: { value: over(ours.value), low: over(ours.low), high: over(ours.high) }, words: words.filter(Boolean).join("\n") }] });
      }
    });
    const titles = new Set(rows.map((row) => row.title));
    if (titles.size > 1) for (const row of rows) row.name += ": " + row.title;
    const isTold = rows.some((row) => Math.abs(row.marks[0].n.value - 1) > SAME - 1 || ends(row.marks[0].n).length > 1);
    if (rows.length > 1 && isTold) rowsChart(parent, "Predicted over published" + (titles.size > 1 ? "" : ": " + rows[0].title), rows, { title: "ratio", unit: "", quantity: "count" }, "linear", 1);
  }

  /* The nearest value of a published range: inside it, the prediction is right. */
  function nearest(n, value) {
    const low = n.low ?? (isNone(n.high) ? n.value : value), high = n.high ?? (isNone(n.low) ? n.value : value);
    return Math.min(Math.max(value, low), high);
  }

  function chart(parent, metric, all) {
    let over = "";
    if (metric.name === "ratio") {
      const every = series(compares), named = (some) => [...new Set(some.map((one) => groupOf(data.points.indexOf(one.points[0]))[compares]))].filter(Boolean).join(", ");
      all = every.filter((one) => !isReference(one));
      over = compares && named(all) ? `: ${named(all)} over ${named(every.filter(isReference))}` : "";
    }
    const shown = all.filter((one) => !isHidden(one));
    const marks = shown.flatMap((one) => one.points.flatMap((point) => (point.scale === null ? [] : marksOf(point, metric).map((m) => ({ ...m, one, x: point.scale })))));
    if (!marks.length) return;
    const figure = make("figure", {}, parent);
    const few = all.length <= MAX_BANDS;
    const Y = valueAxis(marks.map((m) => (few || m.from === "measured" ? m.n : { value: m.n.value })), metric, state.values);
    make("figcaption", {}, figure, titleOf(metric, Y.name) + over);
    const W = 520, H = 300, L = 52, R = 12, T = 10, B = 44;
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Chart of " + metric.title }, figure);
    const X = axis(marks.map((m) => m.x), state.logX, false);
    const INSET = 16; // keeps the first mark off the labels of the axis
    const px = (v) => L + INSET + X.at(v) * (W - L - R - 2 * INSET), py = (v) => H - B - Y.at(v) * (H - T - B);
    /* Measured marks of several series at one scale stand side by side. */
    const aside = (one) => (shown.length < 2 || shown.length > 6 ? 0 : 7 * (shown.indexOf(one) - (shown.length - 1) / 2));
    for (const tick of Y.ticks) {
      const y = py(tick * Y.size);
      make("line", { class: "grid", x1: L, x2: W - R, y1: y, y2: y }, svg);
      make("text", { x: L - 6, y: y + 4, "text-anchor": "end" }, svg, tidy(tick));
    }
    const xs = [...new Set(marks.map((m) => m.x))].sort((a, b) => a - b);
    let last = -99;
    for (const tick of xs) {
      if (px(tick) - last < 34) continue;
      last = px(tick);
      make("line", { class: "axis", x1: last, x2: last, y1: H - B, y2: H - B + 4 }, svg);
      make("text", { x: last, y: H - B + 17, "text-anchor": "middle" }, svg, tick.toLocaleString("en"));
    }
    make("line", { class: "axis", x1: L, x2: W - R, y1: H - B, y2: H - B }, svg);
    make("text", { class: "soft", x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle" }, svg, data.scale_name);
    for (const one of shown) {
      const own = marks.filter((m) => m.one === one && m.from === "predicted").sort((a, b) => a.x - b.x);
      if (few && own.length > 1 && own.every((m) => ends(m.n).length === 3)) {
        const up = own.map((m) => `${px(m.x)},${py(m.n.high)}`), down = own.map((m) => `${px(m.x)},${py(m.n.low)}`).reverse();
        make("path", { d: "M" + [...up, ...down].join("L") + "Z", fill: one.colour, opacity: 0.12 }, svg);
        const furthest = own.reduce((a, b) => (b.n.high > a.n.high ? b : a));
        if (Y.cuts(furthest.n.high)) arrow(svg, px(furthest.x), py(furthest.n.high), one.colour, format(furthest.n.high, metric), false);
      }
      if (own.length > 1) make("path", { d: "M" + own.map((m) => `${px(m.x)},${py(m.n.value)}`).join("L"), fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-dasharray": one.dash }, svg);
    }
    for (const m of marks) {
      const x = px(m.x) + (m.from === "measured" ? aside(m.one) : 0), bar = ends(m.n);
      if (m.from === "measured" && bar.length > 1) {
        make("line", { x1: x, x2: x, y1: py(Math.min(...bar)), y2: py(Math.max(...bar)), stroke: m.one.colour, "stroke-width": 1.5 }, svg);
        if (Y.cuts(Math.max(...bar))) arrow(svg, x, py(Math.max(...bar)), m.one.colour, format(Math.max(...bar), metric), false);
      }
      tip(figure, shape(svg, x, py(m.n.value), m.from, m.one.colour, m.from === "measured" && doubtsOf(m.point).length, false), wordsOf(m, metric));
    }
  }

  function distribution(parent, name, all) {
    const lines = [];
    all.filter((one) => !isHidden(one)).forEach((one) => one.points.forEach((point) => {
      const values = (point.series || {})[name];
      if (values && values.length > 1) lines.push({ one, point, values: [...values].sort((a, b) => a - b) });
    }));
    if (!lines.length) return;
    const metric = { title: name.replace(/_s$/, "").replaceAll("_", " "), unit: "s", quantity: "time" };
    const figure = make("figure", {}, parent);
    make("figcaption", {}, figure, "Distribution of " + metric.title);
    const W = 520, H = 300, L = 60, R = 12, T = 10, B = 44;
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Cumulative distribution of " + metric.title }, figure);
    const X = axis(lines.flatMap((l) => [l.values[0], l.values[l.values.length - 1]]), true, false);
    const px = (v) => L + X.at(v) * (W - L - R), py = (v) => H - B - v * (H - T - B);
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      make("line", { class: "grid", x1: L, x2: W - R, y1: py(share), y2: py(share) }, svg);
      make("text", { x: L - 6, y: py(share) + 4, "text-anchor": "end" }, svg, 100 * share + " %");
    }
    make("text", { class: "soft", x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle" }, svg, metric.title);
    let last = -99;
    for (const tick of X.ticks) {
      if (px(tick) - last < 52) continue;
      last = px(tick);
      make("text", { x: last, y: H - B + 17, "text-anchor": "middle" }, svg, format(tick, metric));
    }
    lines.forEach((line, i) => {
      const n = line.values.length, colour = COLOURS[i % COLOURS.length], bend = (line.point.elbows || {})[name];
      if (lines.length > 1 && i < 8) {
        const y = H - B - 12 - 16 * (Math.min(lines.length, 8) - 1 - i);
        make("line", { x1: W - R - 14, x2: W - R, y1: y - 4, y2: y - 4, stroke: colour, "stroke-width": 3 }, svg);
        make("text", { class: "halo", x: W - R - 20, y, "text-anchor": "end" }, svg, Object.entries(line.point.labels).filter(([axis]) => valuesOf(axis).length > 1).map(([axis, value]) => axis + " " + value).join(", "));
      }
      const path = make("path", { d: `M${px(line.values[0])},${py(0)}` + line.values.map((v, k) => `H${px(v)}V${py((k + 1) / n)}`).join(""), fill: "none", stroke: colour, "stroke-width": 2 }, svg);
      tip(figure, path, labelsOf(line.point) + "\nmedian " + format(line.values[n >> 1], metric) + ", 99 % below " + format(line.values[Math.min(n - 1, Math.floor(0.99 * n))], metric));
      if (!bend) return;
      const x = px(bend.time_s), y = py(bend.share_frac);
      const mark = make("path", { d: `M${x - 6},${y}L${x + 6},${y}M${x},${y - 6}L${x},${y + 6}`, stroke: colour, "stroke-width": 3 }, svg);
      tip(figure, mark, labelsOf(line.point) + "\nelbow: " + tidy(100 * bend.share_frac) + " % take up to " + format(bend.time_s, metric) + ", then the tail begins");
    });
  }

  /* Which metrics are drawn, those with something to compare first. One that only repeats another is named instead. */
  const MAX_CHARTS = 6;
  function drawn() {
    const told = (metric) => data.points.some((point) => point.measured[metric.name] || point.published.some((one) => one.metric === metric.name));
    const ordered = [...data.metrics.filter(told), ...data.metrics.filter((metric) => !told(metric))];
    const kept = [], left = [];
    for (const metric of ordered) {
      const twin = told(metric) ? undefined : kept.find((other) => isProportional(metric, other));
      if (twin) left.push(`${metric.title} (proportional to ${twin.title})`);
      else if (!told(metric) && isConstant(metric)) left.push(`${metric.title} (the same everywhere)`);
      else if (kept.length < MAX_CHARTS) kept.push(metric);
      else left.push(metric.title);
    }
    return { kept, left };
  }
  const predictedOf = (metric) => data.points.filter((point) => !point.problem).map((point) => (point.predicted[metric.name] || {}).value);
  const spread = (values) => Math.max(...values) / Math.min(...values);
  function isProportional(metric, other) {
    const [ours, theirs] = [predictedOf(metric), predictedOf(other)];
    const ratios = ours.map((v, i) => (v > 0 && theirs[i] > 0 ? v / theirs[i] : null));
    return ours.length > 2 && ratios.every((ratio, i) => ratio !== null || (ours[i] === undefined && theirs[i] === undefined)) && spread(ratios.filter((r) => r !== null)) < SAME;
  }
  function isConstant(metric) {
    const values = predictedOf(metric).filter((v) => v !== undefined);
    return values.length > 2 && Math.min(...values) > 0 && spread(values) < SAME;
  }

  function draw() {
    const parent = article.querySelector(".plots:not(.stage-plots)"), all = isScaling ? series() : [], { kept, left } = drawn();
    parent.replaceChildren();
    legend(all);
    compared(parent);
    const alone = data.points.filter((_, index) => isChosen(index) && !(isScaling && onLine[index]));
    const first = kept.find((metric) => alone.filter((point) => has(point, metric.name)).length > 1);
    if (isScaling && first) dots(parent, first, alone);
    for (const metric of kept) isScaling ? chart(parent, metric, all) : dots(parent, metric, alone);
    for (const name of new Set(data.points.flatMap((point) => Object.keys(point.series || {})))) distribution(parent, name, isScaling ? all : series());
    article.querySelector(".left").textContent = left.length ? "Not drawn: " + left.join(", ") + ". The table of points has their numbers." : "";
  }

  // --- tables ------------------------------------------------------------------------------------------------------
  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, null, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        table.querySelectorAll("tr.detail").forEach((row) => row.remove());
        table.querySelectorAll(".more").forEach((more) => more.setAttribute("aria-expanded", "false"));
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => {
          const cell = row.cells[column];
          if (cell.dataset.value !== undefined) return cell.dataset.value === "" ? null : Number(cell.dataset.value);
          const text = cell.textContent.trim();
          return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
        };
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === null || y === null) return (x === null) - (y === null);
          const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
          return up ? order : -order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  function details(row, button) {
    const next = row.nextElementSibling;
    if (next && next.classList.contains("detail")) {
      next.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    button.setAttribute("aria-expanded", "true");
    const point = data.points[Number(row.dataset.point)];
    const line = make("tr", { class: "detail" });
    const cell = make("td", { colspan: row.cells.length }, line);
    const say = (text) => text && make("p", {}, cell, text);
    say(point.problem && "Not predicted: " + point.problem);
    say(point.why);
    say(point.measured_problem && "Not measured: " + point.measured_problem);
    for (const doubt of point.doubts || []) say("In doubt: " + doubt.text);
    for (const [name, bend] of Object.entries(point.elbows || {})) say(tidy(100 * bend.share_frac) + " % of the " + name.replace(/_s$/, "").replaceAll("_", " ") + "s are up to " + format(bend.time_s, { unit: "s" }) + ", where the tail begins.");
    say(point.remark && "Published: " + point.remark);
    for (const [title, parts] of [["Predicted shares of the step", point.parts], ["Measured shares of the step", point.measured_parts]]) {
      const entries = Object.entries(parts).slice(0, 10);
      if (!entries.length) continue;
      make("h3", {}, cell, title);
      const bars = make("div", { class: "bars" }, cell);
      for (const [name, share] of entries) {
        make("span", {}, bars, name);
        make("i", { style: `width:${(100 * share).toFixed(2)}%` }, make("span", {}, bars));
        make("span", {}, bars, (100 * share).toFixed(1) + " %");
      }
    }
    for (const told of point.published) {
      const metric = data.metrics.find((m) => m.name === told.metric);
      if (metric) say("Published " + metric.title + " " + format(told.number.value, metric) + (told.note ? " (" + told.note + ")" : "") + ": " + told.source);
    }
    for (const note of point.notes) say("Note: " + data.note_texts[note]);
    say("Point " + point.id);
    row.after(line);
  }

  function filter() {
    const words = article.querySelector(".filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of article.querySelectorAll(".points tbody tr[data-point]")) {
      const text = row.textContent.toLowerCase(), keep = words.every((word) => text.includes(word));
      row.hidden = !keep;
      if (row.nextElementSibling && row.nextElementSibling.classList.contains("detail")) row.nextElementSibling.hidden = !keep;
      count += keep;
    }
    article.querySelector(".count").textContent = count + " of " + data.points.length + " points";
  }

  article.querySelectorAll("table.data").forEach(sortable);
  article.querySelector(".points").addEventListener("click", (event) => {
    const button = event.target.closest(".more");
    if (button) details(button.closest("tr"), button);
  });
  article.querySelector(".filter").addEventListener("input", filter);
  controls();
  draw();
  filter();
}

document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});
document.querySelectorAll("article.part").forEach(study);
