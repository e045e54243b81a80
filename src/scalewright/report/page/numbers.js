"use strict";
/* Nodes, numbers and axes of the charts, by the rules of report/study/axes.py. */
const NS = "http://www.w3.org/2000/svg";
const SVG_TAGS = ["svg", "g", "path", "line", "circle", "text", "rect", "defs", "clipPath"];
const PREFIX = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

function make(tag, attributes, parent, text) {
  const node = SVG_TAGS.includes(tag) ? document.createElementNS(NS, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

/* The words of a mark, for mouse, keyboard and screen readers. */
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
  if (metric.unit === "kg CO2e" && highest >= 1000) return { size: 1000, name: "t CO2e" };
  if (metric.quantity === "count" || metric.quantity === "money") {
    const [size, word] = [[1e12, "trillion "], [1e9, "billion "], [1e6, "million "], [1e3, "thousand "]].find(([size]) => highest >= Math.max(size, 1e4)) || [1, ""];
    return { size, name: word + metric.unit };
  }
  const [size, prefix] = PREFIX.find(([size]) => highest >= size) || [1e-9, "n"];
  return { size, name: prefix + metric.unit };
}

// --- axes ----------------------------------------------------------------------------------------------------------
/* An axis ends at CLIP times the largest value: bars that reach further are cut and carry an arrow with their end. */
const CLIP = 2, LOG_SPAN = 50;
function isLog(values, metric, choice) {
  const low = Math.min(...values), high = Math.max(...values);
  if (low <= 0 || choice === "linear") return false;
  return choice === "log" || (metric.quantity !== "fraction" && high / low >= LOG_SPAN);
}
const ends = (n) => [n.low, n.value, n.high].filter((v) => v !== null && v !== undefined);
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

/* The axis of a metric's values. `at` is a share of its length; `cuts` tells what goes on beyond its end. */
function valueAxis(numbers, metric, choice) {
  const values = numbers.map((n) => n.value), highest = Math.max(...values), least = Math.min(...values);
  const unit = scaled(highest, metric), log = isLog(values, metric, choice);
  const held = numbers.flatMap(ends).map((v) => Math.min(Math.max(v, log ? least / CLIP : v), CLIP * Math.max(highest, 0) || v));
  const plain = axis(held.map((v) => v / unit.size), log, true);
  const share = (v) => (log && v <= 0 ? 0 : plain.at(v / unit.size));
  return { ...unit, log, ticks: plain.ticks, at: (v) => Math.min(Math.max(share(v), 0), 1), cuts: (v) => share(v) > 1.0001 };
}
