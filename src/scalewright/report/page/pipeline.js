"use strict";
/* Charts of a pipeline: accuracy, time and energy by part, roofline, and the curves of its stages. */
function pipeline(article) {
  const source = article.querySelector("script.pipeline-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const FONT = matchMedia("(max-width: 40rem)").matches ? 16 : 12, W = 520;
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "var(--ink)"];
  const FRACTION = { quantity: "fraction", unit: "" }, SECONDS = { unit: "s" }, JOULES = { unit: "J" };
  const done = data.stages.filter((stage) => stage.took_s !== null);
  const wide = (texts) => Math.max(...texts.map((text) => text.length)) * FONT * 0.56 + 12;
  const plots = article.querySelector(".stage-plots");

  function frame(parent, caption, H) {
    const figure = make("figure", {}, parent);
    make("figcaption", {}, figure, caption);
    return { figure, svg: make("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Chart of " + caption }, figure) };
  }

  /* Names of what is drawn, below a chart: a mark each. */
  function key(figure, entries) {
    const box = make("p", { class: "key" }, figure);
    for (const [title, colour, mark] of entries) {
      const one = make("span", {}, box);
      make("i", { style: `color:${colour}` }, one, mark || "\u25a0");
      one.append(" " + title);
    }
  }

  // --- accuracy ----------------------------------------------------------------------------------------------------
  function accuracies() {
    const shown = done.filter((stage) => stage.accuracy);
    if (!shown.length) return;
    const names = [...new Set(shown.map((stage) => stage.name))], STEP = FONT + 14, T = 6, B = 28;
    const H = T + B + STEP * names.length, L = wide(names), R = FONT * 3.6;
    const { figure, svg } = frame(plots, "Greedy accuracy on the test set (%)", H);
    const X = axis([0, ...shown.flatMap((s) => [100 * s.accuracy.low, 100 * s.accuracy.high])], false, true);
    const px = (v) => L + X.at(100 * v) * (W - L - R), py = (at) => T + STEP * (at + 0.5);
    for (const tick of X.ticks) {
      make("line", { class: "grid", x1: px(tick / 100), x2: px(tick / 100), y1: T, y2: H - B }, svg);
      make("text", { x: px(tick / 100), y: H - B + 18, "text-anchor": "middle" }, svg, tidy(tick));
    }
    names.forEach((name, at) => {
      const seeds = shown.filter((stage) => stage.name === name);
      make("text", { x: L - 8, y: py(at) + 4, "text-anchor": "end" }, svg, name);
      seeds.forEach((stage, i) => {
        const a = stage.accuracy, y = py(at) + (seeds.length > 1 ? 5 * (i - (seeds.length - 1) / 2) : 0);
        make("line", { x1: px(a.low), x2: px(a.high), y1: y, y2: y, stroke: COLOURS[0], "stroke-width": 2 }, svg);
        tip(figure, make("circle", { cx: px(a.value), cy: y, r: seeds.length > 1 ? 4 : 5.5, fill: COLOURS[0] }, svg), `${stage.label}: ${format(a.value, FRACTION)} of ${stage.num_problems} problems\n95 % interval ${format(a.low, FRACTION)} to ${format(a.high, FRACTION)}`);
      });
      const mean = seeds.reduce((sum, stage) => sum + stage.accuracy.value, 0) / seeds.length;
      make("text", { x: W, y: py(at) + 4, "text-anchor": "end" }, svg, (100 * mean).toFixed(1));
    });
  }

  // --- time and energy ---------------------------------------------------------------------------------------------
  const totalOf = (values) => Object.values(values).reduce((a, b) => a + b, 0);
  /* The predicted split, as a thin bar below the measured one. */
  function thinBar(figure, svg, row, y, at, metric) {
    const whole = totalOf(row.predicted);
    let start = 0;
    for (const part of data.parts) {
      const value = row.predicted[part.name] || 0;
      if (value <= 0) continue;
      const x = at(start / whole);
      tip(figure, make("rect", { class: "thin", x, y, width: Math.max(at((start + value) / whole) - x, 0.5), height: 4, fill: part.colour, stroke: "var(--paper)", "stroke-width": 0.5 }, svg), `${row.stage.label}: ${part.title} predicted ${format(value, metric)}, ${tidy((100 * value) / whole)} % of the steps`);
      start += value;
    }
  }
  function stacked(caption, valuesOf, metric, isShare, predictedOf = () => ({})) {
    const rows = done.map((stage) => ({ stage, values: valuesOf(stage), predicted: predictedOf(stage) })).filter((row) => Object.values(row.values).some((v) => v > 0));
    if (!rows.length) return;
    const totals = rows.map((row) => totalOf(row.values));
    const STEP = FONT + 14, T = 4, B = isShare ? 26 : 26, H = T + B + STEP * rows.length;
    const L = wide(rows.map((row) => row.stage.label)), R = wide(totals.map((total) => format(total, metric)));
    const { figure, svg } = frame(plots, caption, H);
    const most = Math.max(...totals), unit = scaled(most, metric);
    const X = isShare ? axis([0, 100], false, true) : axis([0, most / unit.size], false, true);
    for (const tick of X.ticks) {
      const x = L + X.at(tick) * (W - L - R);
      make("line", { class: "grid", x1: x, x2: x, y1: T, y2: H - B }, svg);
      make("text", { x, y: H - B + 18, "text-anchor": "middle" }, svg, tidy(tick) + (isShare ? " %" : ""));
    }
    rows.forEach((row, at) => {
      let start = 0;
      const y = T + STEP * at + 3;
      make("text", { x: L - 8, y: y + STEP / 2 + 1, "text-anchor": "end" }, svg, row.stage.label);
      for (const part of data.parts) {
        const value = row.values[part.name] || 0, length = isShare ? (100 * value) / totals[at] : value / unit.size;
        if (value <= 0) continue;
        const x1 = L + X.at(start) * (W - L - R), x2 = L + X.at(start + length) * (W - L - R);
        tip(figure, make("rect", { x: x1, y, width: Math.max(x2 - x1, 0.5), height: STEP - (totalOf(row.predicted) ? 10 : 6), fill: part.colour }, svg), `${row.stage.label}: ${part.title} ${format(value, metric)}, ${tidy((100 * value) / totals[at])} % of the stage`);
        start += length;
      }
      make("text", { x: W, y: y + STEP / 2 + 1, "text-anchor": "end" }, svg, format(totals[at], metric));
      thinBar(figure, svg, row, y + STEP - 7, (share) => L + X.at(100 * share) * (W - L - R), metric);
    });
    const used = data.parts.filter((part) => rows.some((row) => (row.values[part.name] || 0) > 0));
    key(figure, used.map((part) => [part.title, part.colour]));
  }

  // --- roofline ----------------------------------------------------------------------------------------------------
  const SHAPES = { prefill: "\u25cf", decode: "\u25a0", training: "\u25b2", log_probs: "\u25c6" };
  function mark(svg, name, x, y, colour) {
    const r = 5.5, paths = { decode: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`, training: `M${x},${y - r - 1}L${x + r + 1},${y + r}L${x - r - 1},${y + r}Z`, log_probs: `M${x},${y - r - 1}L${x + r + 1},${y}L${x},${y + r + 1}L${x - r - 1},${y}Z` };
    const style = { fill: colour, stroke: "var(--paper)", "stroke-width": 1 };
    return name === "prefill" ? make("circle", { cx: x, cy: y, r, ...style }, svg) : make("path", { d: paths[name] || paths.decode, ...style }, svg);
  }
  function roofline() {
    const points = done.flatMap((stage, at) => stage.roofline.map((point) => ({ ...point, stage, at })));
    if (!points.length) return;
    const roofed = done.find((stage) => stage.peak_flop_per_s && stage.memory_bytes_per_s);
    const peak = roofed ? roofed.peak_flop_per_s : null, slope = roofed ? roofed.memory_bytes_per_s : null;
    const xs = points.map((p) => p.flop_per_byte), ys = points.map((p) => p.flop_per_s);
    if (roofed) { xs.push(peak / slope); ys.push(peak); }
    const X = axis([Math.min(...xs) / 2, Math.max(...xs) * 2], true), Y = axis([Math.min(...ys) / 2, Math.max(...ys) * 1.6], true);
    const H = 320, L = FONT * 5.4, R = 10, T = 12, B = 46;
    const { figure, svg } = frame(plots, "Roofline: prefill, decode and training of each stage", H);
    const px = (v) => L + X.at(v) * (W - L - R), py = (v) => H - B - Y.at(v) * (H - T - B);
    const decade = (ticks) => { const tens = ticks.filter((tick) => /^1/.test(tick.toExponential())); return tens.length > 1 ? tens : ticks; };
    for (const tick of decade(X.ticks)) {
      make("line", { class: "grid", x1: px(tick), x2: px(tick), y1: T, y2: H - B }, svg);
      make("text", { x: px(tick), y: H - B + 16, "text-anchor": "middle" }, svg, tidy(tick));
    }
    for (const tick of decade(Y.ticks)) {
      make("line", { class: "grid", x1: L, x2: W - R, y1: py(tick), y2: py(tick) }, svg);
      make("text", { x: L - 6, y: py(tick) + 4, "text-anchor": "end" }, svg, format(tick, { unit: "FLOP/s" }).replace("FLOP/s", ""));
    }
    make("text", { class: "soft", x: (L + W - R) / 2, y: H - 6, "text-anchor": "middle" }, svg, "FLOP per byte; upwards: FLOP/s");
    if (roofed) {
      const left = Math.max(Math.min(...xs) / 2, Math.min(...ys) / 2 / slope), ridge = peak / slope, right = Math.max(...xs) * 2;
      make("path", { class: "axis", d: `M${px(left)},${py(left * slope)}L${px(ridge)},${py(peak)}L${px(right)},${py(peak)}`, "stroke-width": 2 }, svg);
      make("text", { class: "halo", x: W - R, y: py(peak) - 4, "text-anchor": "end" }, svg, "peak " + format(peak, { unit: "FLOP/s" }) + ", memory " + format(slope, { unit: "B/s" }));
    }
    const names = [...new Set(points.map((p) => p.stage.name))];
    for (const p of points) tip(figure, mark(svg, p.name, px(p.flop_per_byte), py(p.flop_per_s), COLOURS[names.indexOf(p.stage.name) % COLOURS.length]), `${p.stage.label}: ${p.name.replace("_", "-")}\n${tidy(p.flop_per_byte)} FLOP per byte, ${format(p.flop_per_s, { unit: "FLOP/s" })}${roofed ? `, ${tidy((100 * p.flop_per_s) / Math.min(peak, slope * p.flop_per_byte))} % of the roof` : ""}`);
    key(figure, [...names.map((name, i) => [name, COLOURS[i % COLOURS.length]]), ...[...new Set(points.map((p) => p.name))].map((name) => [name.replace("_", "-"), "var(--ink)", SHAPES[name]])]);
  }

  // --- curves ------------------------------------------------------------------------------------------------------
  function curves(parent, group, name, title) {
    const lines = group.stages.filter((stage) => (stage.curve[name] || []).some((v) => v !== null));
    if (!lines.length) return;
    const pairs = (line) => line.curve.step.map((step, i) => [step + 1, line.curve[name][i]]).filter(([, v]) => v !== null && v !== undefined);
    const all = lines.flatMap(pairs), share = /_frac$/.test(name) ? 100 : 1;
    const values = all.map(([, v]) => v * share), positive = values.filter((v) => v > 0);
    const log = /^(kl_|grad)/.test(name) && positive.length > 0 && Math.max(...values) / Math.min(...positive) > 50;
    const H = 200, L = FONT * 4, R = 10, T = 8, B = 36;
    const { figure, svg } = frame(parent, title[0].toUpperCase() + title.slice(1) + (share === 100 ? " (%)" : ""), H);
    const X = axis(all.map(([step]) => step), false, false), Y = axis(log ? positive : values, log, !log);
    const px = (v) => L + X.at(v) * (W - L - R), py = (v) => H - B - Math.min(Math.max(log && v <= 0 ? 0 : Y.at(v), 0), 1) * (H - T - B);
    for (const tick of Y.ticks) {
      make("line", { class: "grid", x1: L, x2: W - R, y1: py(tick), y2: py(tick) }, svg);
      make("text", { x: L - 6, y: py(tick) + 4, "text-anchor": "end" }, svg, Math.abs(tick) > 0 && Math.abs(tick) < 0.001 ? tick.toExponential(0) : tidy(tick));
    }
    let last = -99;
    for (const tick of X.ticks) {
      if (px(tick) - last < 46 || px(tick) > W - R + 1) continue;
      last = px(tick);
      make("text", { x: last, y: H - B + 16, "text-anchor": "middle" }, svg, tidy(tick));
    }
    make("text", { class: "soft", x: W - R, y: H - 4, "text-anchor": "end" }, svg, "step");
    const told = new Set();
    lines.forEach((line) => {
      const points = pairs(line), colour = COLOURS[line.colour % COLOURS.length];
      const path = make("path", { d: "M" + points.map(([x, y]) => `${px(x).toFixed(1)},${py(y * share).toFixed(1)}`).join("L"), fill: "none", stroke: colour, "stroke-width": 2, "stroke-opacity": told.has(line.colour) ? 0.55 : 1 }, svg);
      if (points.length === 1) make("circle", { cx: px(points[0][0]), cy: py(points[0][1] * share), r: 4, fill: colour }, svg);
      told.add(line.colour);
      const ends = [points[0][1], points[points.length - 1][1]].map((v) => tidy(v * share));
      tip(figure, path, `${line.label}: ${title}\nfrom ${ends[0]} to ${ends[1]}${share === 100 ? " %" : ""} in ${points[points.length - 1][0]} steps`);
    });
  }
  function drawCurves() {
    const parent = article.querySelector(".curve-groups");
    if (!parent) return;
    for (const group of data.groups) {
      const box = make("div", { class: "curve-group" }, parent);
      make("h4", {}, box, group.title);
      const names = new Map(group.stages.map((stage) => [stage.colour, stage.label.replace(/, seed \d+$/, "")]));
      if (names.size > 1) key(box, [...names].map(([colour, name]) => [name, COLOURS[colour % COLOURS.length], "\u2501"]));
      const charts = make("div", { class: "plots small" }, box);
      for (const [name, title] of Object.entries(data.curves)) curves(charts, group, name, title);
    }
  }

  accuracies();
  stacked("Time by part of the step" + (done.some((stage) => totalOf(stage.predicted_by_part)) ? "; thin bars: predicted" : ""), (stage) => stage.seconds_by_part, SECONDS, true, (stage) => stage.predicted_by_part);
  stacked("Energy by part of the step" + " (" + scaled(Math.max(1, ...done.map((stage) => stage.energy_j || 0)), JOULES).name + ")", (stage) => stage.energy_by_part, JOULES, false);
  roofline();
  drawCurves();
}
document.querySelectorAll("article.part").forEach(pipeline);
