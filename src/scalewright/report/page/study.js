"use strict";
function study(article) {
  const data = JSON.parse(article.querySelector("script.data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  /* A chart is 520 units wide whatever the screen: on a phone its letters are drawn larger, as the style sheet says. */
  const FONT = matchMedia("(max-width: 40rem)").matches ? 16 : 12;
  const COLOURS = ["#2f7fd0", "#d1562b", "#229a5b", "#9a62cf", "#c08a10", "#17a2b8", "#d0487f", "#7b8794", "#8aa82f", "#8c5a3c", "#5a6fd6", "#c23b3b"];
  const PREFIX = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

  function make(tag, attributes, parent, text) {
    const svg = ["svg", "g", "path", "line", "circle", "text", "rect"].includes(tag);
    const node = svg ? document.createElementNS(NS, tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  // --- numbers, as the tables of the page write them --------------------------------------------------------------
  function tidy(value) {
    const rounded = Number(value.toPrecision(3));
    return Math.abs(rounded) >= 1000 ? rounded.toLocaleString("en") : String(rounded);
  }
  /* Values are in SI; a link's bytes are written in bits. */
  const BITS = 8;
  function format(value, metric) {
    if (metric.quantity === "fraction") return tidy(100 * value) + " %";
    if (metric.quantity === "link rate") value *= BITS;
    if (metric.unit === "s") {
      if (value >= 172800) return tidy(value / 86400) + " d";
      if (value >= 7200) return tidy(value / 3600) + " h";
      if (value >= 120) return tidy(value / 60) + " min";
    }
    if (metric.unit === "B") {
      for (const [size, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
        if (value >= size) return tidy(value / size) + " " + name;
      return tidy(value) + " B";
    }
    if (["tokens/s", "images/s", "samples/s", ""].includes(metric.unit) && Math.abs(value) < 1e6 && Math.abs(value) >= 1)
      return (tidy(value) + " " + metric.unit).trim();
    if (value === 0) return "0 " + metric.unit;
    const [size, prefix] = PREFIX.find(([size]) => Math.abs(value) >= size * 0.9995) || [1e-9, "n"];
    return (tidy(value / size) + " " + prefix + metric.unit).trim();
  }

  /* The unit that an axis is written in, by its largest value: what its ticks are divided by, and its name. */
  function scaled(highest, metric) {
    if (metric.quantity === "fraction") return { size: 0.01, name: "%" };
    if (metric.quantity === "link rate") {
      const whole = scaled(highest * BITS, { unit: metric.unit });
      return { size: whole.size / BITS, name: whole.name };
    }
    if (metric.unit === "s") return [[86400, "d", 172800], [3600, "h", 7200], [60, "min", 120], [1, "s", 1], [1e-3, "ms", 1e-3]].map(([size, name, from]) => ({ size, name, from })).find((u) => highest >= u.from) || { size: 1e-6, name: "µs" };
    if (metric.unit === "B") return [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].map(([size, name]) => ({ size, name })).find((u) => highest >= u.size) || { size: 1, name: "B" };
    const [size, prefix] = PREFIX.find(([size]) => highest >= size * (size === 1e3 ? 10 : 1)) || [1e-9, "n"];
    if (["tokens/s", "images/s", "samples/s", ""].includes(metric.unit)) return { size, name: ({ k: "thousand ", M: "million ", G: "billion ", T: "trillion " }[prefix] || prefix) + metric.unit };
    return { size, name: prefix + metric.unit };
  }

  // --- which points are shown --------------------------------------------------------------------------------------
  const groups = data.curves.length ? Object.keys(data.curves[0].group) : data.axes;
  const valuesOf = (axis) => [...new Set(data.points.map((point) => point.labels[axis] ?? ""))];
  const state = { chosen: {}, hidden: new Set(), logX: false, logY: false, metrics: data.metrics.slice(0, 4).map((m) => m.name) };
  const scaleOf = (point) => point.scale;
  const isScaling = data.curves.length > 0;
  const groupOf = (index) => {
    const curve = data.curves.find((c) => c.points.includes(index));
    return curve ? curve.group : data.points[index].labels;
  };
  const counts = groups.map((axis) => new Set(data.points.map((_, i) => groupOf(i)[axis])).size);
  const seriesAxis = groups.length ? groups[counts.indexOf(Math.max(...counts))] : "";
  const numCurves = new Set(data.points.map((_, i) => JSON.stringify(groupOf(i)))).size;
  for (const axis of groups) {
    const first = groupOf(0)[axis];
    state.chosen[axis] = isScaling && numCurves > 8 && axis !== seriesAxis ? first : "";
  }
  const scales = data.points.map(scaleOf).filter((s) => s !== null);
  if (scales.length && Math.max(...scales) / Math.min(...scales) >= 8) state.logX = true;

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
      select.addEventListener("change", () => { state.chosen[axis] = select.value; draw(); });
    }
    const scalesOf = isScaling ? [["logX", "log " + data.scale_name], ["logY", "log values"]] : [["logY", "log values"]];
    for (const [key, title] of scalesOf) {
      const label = make("label", {}, box);
      const check = make("input", { type: "checkbox" }, label);
      check.checked = state[key];
      label.append(" " + title);
      check.addEventListener("change", () => { state[key] = check.checked; draw(); });
    }
  }

  function series() {
    const found = new Map();
    data.points.forEach((point, index) => {
      const group = groupOf(index);
      if (groups.some((axis) => state.chosen[axis] && group[axis] !== state.chosen[axis])) return;
      const open = groups.filter((axis) => !state.chosen[axis]);
      const name = isScaling ? open.map((axis) => group[axis]).join(", ") || data.title : "points";
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(point);
    });
    return [...found.entries()].map(([name, points], i) => ({ name, points, colour: COLOURS[i % COLOURS.length], dash: i >= COLOURS.length ? "5 3" : "" }));
  }

  function legend(all) {
    const box = article.querySelector(".legend");
    box.replaceChildren();
    if (all.length < 2) return;
    for (const one of all) {
      const button = make("button", { type: "button", "aria-pressed": String(!state.hidden.has(one.name)) }, box);
      make("span", { class: "swatch", style: "background:" + one.colour }, button);
      button.append(one.name);
      button.addEventListener("click", () => {
        state.hidden.has(one.name) ? state.hidden.delete(one.name) : state.hidden.add(one.name);
        draw();
      });
    }
  }

  // --- axes --------------------------------------------------------------------------------------------------------
  function axis(values, log, zero) {
    let low = Math.min(...values), high = Math.max(...values);
    if (log && low > 0) {
      const a = Math.log10(low), b = Math.log10(high), pad = Math.max((b - a) * 0.05, 0.05);
      const ticks = [];
      for (let power = Math.floor(a - pad); power <= Math.ceil(b + pad); power++)
        for (const step of [1, 2, 5]) {
          const tick = step * 10 ** power;
          if (Math.log10(tick) >= a - pad && Math.log10(tick) <= b + pad) ticks.push(tick);
        }
      return { at: (v) => (Math.log10(v) - a + pad) / (b - a + 2 * pad), ticks: ticks.length > 8 ? ticks.filter((t) => /^1/.test(t.toExponential())) : ticks };
    }
    if (zero) low = Math.min(low, 0);
    if (high === low) high = low + Math.abs(low || 1);
    const raw = (high - low) / 5, size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((s) => s * size).find((s) => s >= raw);
    const start = Math.floor(low / step) * step, end = Math.ceil(high / step) * step;
    const ticks = [];
    for (let tick = start; tick <= end + step / 2; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
    return { at: (v) => (v - start) / (end - start), ticks };
  }

  function tip(figure, node, text) {
    const show = () => {
      hide();
      const box = make("div", { class: "tip", role: "tooltip" }, figure, text);
      const outer = figure.getBoundingClientRect(), inner = node.getBoundingClientRect();
      const left = Math.min(Math.max(inner.left - outer.left + 12, 0), Math.max(outer.width - box.offsetWidth - 4, 0));
      box.style.left = left + "px";
      box.style.top = inner.top - outer.top + 14 + "px";
    };
    const hide = () => figure.querySelectorAll(".tip").forEach((old) => old.remove());
    node.addEventListener("mouseenter", show);
    node.addEventListener("focus", show);
    node.addEventListener("mouseleave", hide);
    node.addEventListener("blur", hide);
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", text.replaceAll("\n", ", "));
  }

  const labelsOf = (point) => Object.entries(point.labels).map(([k, v]) => k + " " + v).join(", ");
  /* What speaks against a measured point, for its tip; a point without doubts is drawn in full colour. */
  const doubtsOf = (point) => (point.doubts || []).map((doubt) => "in doubt: " + doubt.text);
  const PALE = 0.45;
  const ends = (n) => [n.low, n.value, n.high].filter((v) => v !== null && v !== undefined);
  const span = (n, metric) => (n.low !== null && n.high !== null && n.low !== n.high ? " (" + format(n.low, metric) + " to " + format(n.high, metric) + ")" : "");

  /* Points that are not on a scale: one below the other, with their labels. */
  function dots(parent, metric) {
    const rows = data.points.filter((point) => {
      const group = point.labels;
      if (groups.some((axis) => state.chosen[axis] && group[axis] !== state.chosen[axis])) return false;
      return point.predicted[metric.name] || point.measured[metric.name] || point.published.some((told) => told.metric === metric.name);
    }).slice(0, 60);
    if (!rows.length) return;
    const marks = rows.flatMap((point, at) => {
      const found = [];
      if (point.predicted[metric.name] && !point.problem) found.push({ point, at, from: "predicted", n: point.predicted[metric.name], colour: COLOURS[0] });
      if (point.measured[metric.name]) found.push({ point, at, from: "measured", n: point.measured[metric.name], colour: COLOURS[1] });
      for (const told of point.published) if (told.metric === metric.name) found.push({ point, at, from: "published", n: told.number, told, colour: COLOURS[2] });
      return found;
    });
    const values = marks.flatMap((m) => ends(m.n));
    const unit = scaled(Math.max(...values), metric);
    const figure = make("figure", {}, parent);
    make("figcaption", {}, figure, metric.title[0].toUpperCase() + metric.title.slice(1) + (unit.name.trim() ? " (" + unit.name.trim() + ")" : ""));
    const names = rows.map((point) => Object.values(point.labels).filter(Boolean).join(", "));
    const letter = FONT * 0.57, most = Math.floor(238 / letter);
    const longest = Math.min(Math.max(...names.map((name) => name.length)) * letter + 12, 250);
    const W = 520, L = longest, R = 16, T = 6, B = 28, STEP = FONT + 8, H = T + B + STEP * rows.length;
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Chart of " + metric.title }, figure);
    const X = axis(values.map((v) => v / unit.size), state.logY, true);
    const px = (v) => L + X.at(v / unit.size) * (W - L - R), py = (at) => T + STEP * (at + 0.5);
    for (const tick of X.ticks) {
      const x = px(tick * unit.size);
      make("line", { class: "grid", x1: x, x2: x, y1: T, y2: H - B }, svg);
      make("text", { x, y: H - B + 16, "text-anchor": "middle" }, svg, tidy(tick));
    }
    names.forEach((name, at) => make("text", { x: L - 8, y: py(at) + 4, "text-anchor": "end" }, svg, name.length > most ? name.slice(0, most - 1) + "…" : name));
    for (const m of marks) {
      const x = px(m.n.value), y = py(m.at), span_ = ends(m.n);
      if (span_.length > 1) make("line", { x1: px(Math.min(...span_)), x2: px(Math.max(...span_)), y1: y, y2: y, stroke: m.colour, "stroke-width": m.from === "predicted" ? 6 : 1.5, opacity: m.from === "predicted" ? 0.25 : 1 }, svg);
      const words = [labelsOf(m.point), m.from + " " + metric.title + " " + format(m.n.value, metric) + span(m.n, metric)];
      if (m.told) words.push(m.told.note || "", m.told.source);
      if (m.from === "measured") words.push(...doubtsOf(m.point));
      const node = m.from === "published" ? make("path", { d: `M${x},${y - 6}L${x + 5},${y}L${x},${y + 6}L${x - 5},${y}Z`, fill: "var(--paper)", stroke: m.colour, "stroke-width": 2.5 }, svg)
        : make("circle", { cx: x, cy: y, r: 4.5, fill: m.from === "measured" ? m.colour : "var(--paper)", stroke: m.colour, "stroke-width": 2 }, svg);
      if (m.from === "measured" && doubtsOf(m.point).length) node.setAttribute("fill-opacity", PALE);
      tip(figure, node, words.filter(Boolean).join("\n"));
    }
  }

  function chart(parent, metric, all) {
    const shown = all.filter((one) => !state.hidden.has(one.name));
    const marks = [];
    shown.forEach((one) => one.points.forEach((point, i) => {
      const x = isScaling ? point.scale : i + 1;
      if (x === null) return;
      const base = { one, point, x };
      if (point.predicted[metric.name] && !point.problem) marks.push({ ...base, from: "predicted", n: point.predicted[metric.name] });
      if (point.measured[metric.name]) marks.push({ ...base, from: "measured", n: point.measured[metric.name] });
      for (const told of point.published) if (told.metric === metric.name) marks.push({ ...base, from: "published", n: told.number, told });
    }));
    if (!marks.length) return;
    const figure = make("figure", {}, parent);
    const few = all.length <= 6;
    const ys = marks.flatMap((m) => (few ? ends(m.n) : [m.n.value]));
    const unit = scaled(Math.max(...ys), metric);
    make("figcaption", {}, figure, metric.title[0].toUpperCase() + metric.title.slice(1) + (unit.name.trim() ? " (" + unit.name.trim() + ")" : ""));
    const W = 520, H = 300, L = 52, R = 12, T = 10, B = 44;
    const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": "Chart of " + metric.title }, figure);
    const X = axis(marks.map((m) => m.x), state.logX && isScaling, false);
    const Y = axis(ys.map((y) => y / unit.size), state.logY, metric.quantity === "fraction" || Math.min(...ys) < 0.6 * Math.max(...ys));
    const INSET = 16; // keeps the first mark off the labels of the axis
    const px = (v) => L + INSET + X.at(v) * (W - L - R - 2 * INSET), py = (v) => H - B - Y.at(v / unit.size) * (H - T - B);
    /* Measured marks of several series at one scale stand side by side. */
    const aside = (one) => (shown.length < 2 || shown.length > 6 ? 0 : 7 * (shown.indexOf(one) - (shown.length - 1) / 2));
    for (const tick of Y.ticks) {
      const y = py(tick * unit.size);
      make("line", { class: "grid", x1: L, x2: W - R, y1: y, y2: y }, svg);
      make("text", { x: L - 6, y: y + 4, "text-anchor": "end" }, svg, tidy(tick));
    }
    const xs = isScaling ? [...new Set(marks.map((m) => m.x))].sort((a, b) => a - b) : [];
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
      }
      if (isScaling && own.length > 1) make("path", { d: "M" + own.map((m) => `${px(m.x)},${py(m.n.value)}`).join("L"), fill: "none", stroke: one.colour, "stroke-width": 2, "stroke-dasharray": one.dash }, svg);
    }
    for (const m of marks) {
      const x = px(m.x) + (m.from === "measured" ? aside(m.one) : 0), y = py(m.n.value), many = ends(m.n).length > 1;
      const words = [labelsOf(m.point), m.from + " " + metric.title + " " + (m.told && m.n.low !== null && m.n.high === null ? "above " : "") + format(m.n.value, metric) + span(m.n, metric)];
      if (m.told) words.push(m.told.note || "", m.told.source);
      else if (m.point.limit && m.from === "predicted") words.push("most of the time: " + m.point.limit);
      else if (m.from === "measured") words.push(...doubtsOf(m.point));
      let node;
      if (m.from === "published") node = make("path", { d: `M${x},${y - 7}L${x + 6},${y}L${x},${y + 7}L${x - 6},${y}Z`, fill: "var(--paper)", stroke: m.one.colour, "stroke-width": 2.5 }, svg);
      else if (m.from === "measured") {
        if (many) make("line", { x1: x, x2: x, y1: py(Math.min(...ends(m.n))), y2: py(Math.max(...ends(m.n))), stroke: m.one.colour, "stroke-width": 1.5 }, svg);
        node = make("circle", { cx: x, cy: y, r: 6, fill: m.one.colour, "fill-opacity": doubtsOf(m.point).length ? PALE : 1, stroke: m.one.colour, "stroke-width": 1.5 }, svg);
      } else node = make("circle", { cx: x, cy: y, r: 3.5, fill: "var(--paper)", stroke: m.one.colour, "stroke-width": 2 }, svg);
      tip(figure, node, words.filter(Boolean).join("\n"));
    }
  }

  function distribution(parent, name, all) {
    const lines = [];
    all.filter((one) => !state.hidden.has(one.name)).forEach((one) => one.points.forEach((point) => {
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
        make("text", { x: W - R - 20, y, "text-anchor": "end" }, svg, Object.entries(line.point.labels).filter(([axis]) => valuesOf(axis).length > 1).map(([axis, value]) => axis + " " + value).join(", "));
      }
      const path = make("path", { d: `M${px(line.values[0])},${py(0)}` + line.values.map((v, k) => `H${px(v)}V${py((k + 1) / n)}`).join(""), fill: "none", stroke: colour, "stroke-width": 2 }, svg);
      tip(figure, path, labelsOf(line.point) + "\nmedian " + format(line.values[n >> 1], metric) + ", 99 % below " + format(line.values[Math.min(n - 1, Math.floor(0.99 * n))], metric));
      if (!bend) return;
      const x = px(bend.time_s), y = py(bend.share_frac);
      const mark = make("path", { d: `M${x - 6},${y}L${x + 6},${y}M${x},${y - 6}L${x},${y + 6}`, stroke: colour, "stroke-width": 3 }, svg);
      tip(figure, mark, labelsOf(line.point) + "\nelbow: " + tidy(100 * bend.share_frac) + " % take up to " + format(bend.time_s, metric) + ", then the tail begins");
    });
  }

  function draw() {
    const parent = article.querySelector(".plots");
    parent.replaceChildren();
    const all = series();
    legend(all);
    for (const metric of data.metrics.slice(0, 6)) isScaling ? chart(parent, metric, all) : dots(parent, metric);
    for (const name of new Set(data.points.flatMap((point) => Object.keys(point.series || {})))) distribution(parent, name, all);
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
