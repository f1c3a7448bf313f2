/* SPDX-License-Identifier: Apache-2.0
 * What all pages share: elements (texts are never parsed as HTML), units, axes, tips, timelines. */
"use strict";
const SVG = "http://www.w3.org/2000/svg";
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) {
      node.addEventListener(key.slice(2), value);
    } else if (value !== undefined && value !== null) {
      node.setAttribute(key, value);
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const sv = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const digits = (x) => (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2));
function time(us) {
  const [value, unit] = !Number.isFinite(us) ? [NaN, ""] : Math.abs(us) >= 1e6 ? [us / 1e6, "s"]
    : Math.abs(us) >= 1e3 ? [us / 1e3, "ms"] : Math.abs(us) >= 1 || us === 0 ? [us, "µs"] : [us * 1e3, "ns"];
  return unit === "" ? "–" : `${us === 0 ? 0 : digits(value)} ${unit}`;
}
function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0, value = count;
  for (; Math.abs(value) >= 1024 && unit < units.length - 1; unit++) {
    value /= 1024;
  }
  return `${unit === 0 || Number.isInteger(value) ? value : digits(value)} ${units[unit]}`;
}
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const percent = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(part / whole < 0.1 ? 1 : 0)} %` : "–");
const colour = (i) => `hsl(${Math.round((210 + i * 137.508) % 360)} var(--s) var(--l))`;

/* About most round values from low to high. */
function ticks(low, high, most) {
  const span = high - low || 1, raw = span / Math.max(1, most), power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= raw) || 10), out = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) {
    out.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  }
  return out;
}

/* One tip for all; shown text is plain. */
const tip = {
  show(text, x, y) {
    const node = document.getElementById("tip");
    node.textContent = text;
    node.hidden = false;
    const box = node.getBoundingClientRect();
    node.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    node.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
  on(node, text) {
    node.addEventListener("pointermove", (event) => tip.show(text(), event.clientX, event.clientY));
    node.addEventListener("pointerleave", tip.hide);
    return node;
  },
};

const tile = (label, value, note) => el("div", {class: "tile"}, el("div", {class: "label"}, label),
  el("div", {class: "value"}, value), el("div", {class: "note"}, note || ""));
const legend = (...pairs) => el("div", {class: "legend"}, pairs.map(([name, paint]) =>
  el("span", {}, el("i", {style: `background:${paint}`}), name)));
const card = (id, title, about, ...children) => el("section", {class: "card", id, "aria-labelledby": `${id}-title`},
  el("h2", {id: `${id}-title`}, title), about ? el("p", {class: "about"}, about) : null, children);
/* columns: [title, is it a number?, cell(row)]; a cell is a text or a node. */
const table = (columns, rows, height) => el("div", {class: "scroll", tabindex: 0, style: `max-height:${height || 420}px`},
  el("table", {}, el("thead", {}, el("tr", {}, columns.map(([title, right]) =>
    el("th", {class: right ? "n" : "", scope: "col"}, title)))),
  el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, right, cell, name]) =>
    el("td", {class: right ? "n" : name || ""}, cell(row))))))));

/* What needs the width of the page: called once all of it is there. */
const whenShown = [];

/* A drawing that is drawn again when its width changes. */
function drawn(draw) {
  const box = el("div", {});
  let width = 0;
  const again = () => width > 0 && box.replaceChildren(draw(width));
  const fit = () => {
    const now = Math.floor(box.clientWidth);
    if (now !== width) {
      width = now;
      again();
    }
  };
  whenShown.push(() => {
    fit();
    new ResizeObserver(() => requestAnimationFrame(fit)).observe(box);
  });
  box.again = again;
  return box;
}

/* Lines or areas over x. series: [{name, paint, points: [[x, y]], area, dashed}]. */
function chart({width, height, series, x, y, label, stacked, stepped, marks}) {
  const left = 64, right = 14, top = 10, bottom = 30, w = width - left - right, h = height - top - bottom;
  const all = series.flatMap((s) => s.points);
  const xs = all.map((p) => p[0]), low = x.low ?? Math.min(...xs), high = x.high ?? Math.max(...xs);
  const yHigh = (y.high ?? Math.max(...all.map((p) => p[1]))) || 1, yLow = y.low ?? 0;
  const px = (v) => left + (high > low ? (v - low) / (high - low) : 0.5) * w;
  const py = (v) => top + h - (v - yLow) / (yHigh - yLow || 1) * h;
  const out = sv("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label});
  for (const t of y.ticks || ticks(yLow, yHigh, 5)) {
    out.append(sv("line", {class: "grid", x1: left, x2: left + w, y1: py(t), y2: py(t)}),
      sv("text", {class: "soft", x: left - 8, y: py(t) + 4, "text-anchor": "end"}, y.text(t)));
  }
  for (const t of ticks(low, high, w / 110)) {
    out.append(sv("line", {class: "axis", x1: px(t), x2: px(t), y1: top + h, y2: top + h + 4}),
      sv("text", {class: "soft", x: px(t), y: top + h + 18, "text-anchor": "middle"}, x.text(t)));
  }
  for (const s of series) {
    const line = (points) => points.map(([a, b], i) =>
      (i === 0 ? `M${px(a)},${py(b)}` : stepped ? `H${px(a).toFixed(1)}V${py(b).toFixed(1)}` : `L${px(a).toFixed(1)},${py(b).toFixed(1)}`)).join("");
    if (s.points.length === 0) {
      continue;
    }
    if (s.area) {
      const base = s.base || [[s.points[s.points.length - 1][0], 0], [s.points[0][0], 0]];
      out.append(sv("path", {d: `${line(s.points)}${base.map(([a, b]) => `L${px(a).toFixed(1)},${py(b).toFixed(1)}`).join("")}Z`,
        fill: s.paint, "fill-opacity": s.opacity || 0.75}));
    } else {
      out.append(sv("path", {d: line(s.points), fill: "none", stroke: s.paint, "stroke-width": s.wide || 1.6,
        "stroke-dasharray": s.dashed ? "5 4" : null, "stroke-linejoin": "round"}));
    }
  }
  for (const mark of marks || []) {
    out.append(sv("line", {class: "mark", x1: left, x2: left + w, y1: py(mark.y), y2: py(mark.y)}),
      sv("text", {x: left + 6, y: py(mark.y) - 5, style: "paint-order:stroke;stroke:var(--card);stroke-width:4px"}, mark.text));
  }
  out.append(sv("line", {class: "axis", x1: left, x2: left + w, y1: top + h, y2: top + h}));
  return out;
}

/* Lanes of spans over time. lanes: [{name, spans: [{start, end, paint, label, tip, of}]}], in us.
 * Arrows go from span to span, + and - zoom, 0 shows all; dragging moves. */
function timeline({lanes, end, label, marks, choose}) {
  const left = 128, row = 30, top = 8, state = {from: 0, to: end, lane: 0, span: -1};
  const detail = el("div", {class: "detail", "aria-live": "polite"},
    "Select a span: click it, or focus the timeline and use the arrow keys.");
  let box = null;
  const pick = (lane, span) => {
    state.lane = lane;
    state.span = span;
    const at = lanes[lane].spans[span];
    if (at) {
      detail.textContent = `${lanes[lane].name}: ${at.tip}`;
      const width = state.to - state.from;
      if (at.end < state.from || at.start > state.to) {
        state.from = Math.max(0, (at.start + at.end) / 2 - width / 2);
        state.to = state.from + width;
      }
      (choose || (() => 0))(at);
    }
    box.again();
  };
  const zoom = (factor, centre) => {
    const at = centre ?? (state.from + state.to) / 2;
    const width = Math.min(end, Math.max(end / 5000, (state.to - state.from) * factor));
    state.from = Math.min(Math.max(0, at - (at - state.from) * width / (state.to - state.from)), end - width);
    state.to = state.from + width;
    box.again();
  };
  const keys = (event) => {
    const spans = lanes[state.lane].spans, move = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    const lane = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    } else if (move) {
      pick(state.lane, Math.min(Math.max(0, state.span + move), spans.length - 1));
    } else if (lane) {
      const to = Math.min(Math.max(0, state.lane + lane), lanes.length - 1), now = spans[state.span];
      const near = lanes[to].spans.findIndex((s) => s.end >= (now ? now.start : 0));
      pick(to, near < 0 ? lanes[to].spans.length - 1 : near);
    } else if (event.key === "+" || event.key === "=") {
      zoom(0.5, spans[state.span] ? spans[state.span].start : undefined);
    } else if (event.key === "-") {
      zoom(2);
    } else if (event.key === "0") {
      zoom(1e9);
    } else if (event.key === "Home" || event.key === "End") {
      pick(state.lane, event.key === "Home" ? 0 : spans.length - 1);
    } else {
      return;
    }
    event.preventDefault();
  };
  box = drawn((width) => {
    const w = width - left - 12, height = top + lanes.length * row + 26;
    const px = (t) => left + (t - state.from) / (state.to - state.from) * w;
    const out = sv("svg", {width, height, viewBox: `0 0 ${width} ${height}`});
    for (const t of ticks(state.from, state.to, w / 120)) {
      out.append(sv("line", {class: "grid", x1: px(t), x2: px(t), y1: top, y2: height - 22}),
        sv("text", {class: "soft", x: px(t), y: height - 7, "text-anchor": "middle"}, time(t)));
    }
    lanes.forEach((lane, l) => {
      const y = top + l * row;
      out.append(sv("text", {class: "soft", x: left - 10, y: y + 18, "text-anchor": "end"}, lane.name));
      let drawnTo = -1;
      lane.spans.forEach((span, i) => {
        const x0 = Math.max(left, px(span.start)), x1 = Math.min(left + w, px(span.end)), own = l === state.lane && i === state.span;
        if (x1 < left || x0 > left + w || (x1 - drawnTo < 0.35 && !own)) {
          return;
        }
        drawnTo = Math.max(drawnTo, x1);
        const node = sv("rect", {class: own ? "span chosen" : "span", x: x0, y: y + 4, width: Math.max(0.7, x1 - x0), height: row - 8,
          rx: x1 - x0 > 6 ? 2 : 0, fill: span.paint, "fill-opacity": span.faint ? 0.55 : 1,
          "data-kind": span.kind, onclick: () => pick(l, i)});
        if (x1 - x0 < 2 && !own) {
          node.setAttribute("stroke", "none");
        }
        out.append(tip.on(node, () => span.tip));
        if (span.label && x1 - x0 > 7 * span.label.length + 6) {
          out.append(sv("text", {x: (x0 + x1) / 2, y: y + 19, "text-anchor": "middle", style: "pointer-events:none;fill:#fff"}, span.label));
        }
      });
    });
    for (const mark of marks || []) {
      if (mark.at >= state.from && mark.at <= state.to) {
        out.append(tip.on(sv("line", {class: "mark", x1: px(mark.at), x2: px(mark.at), y1: 0, y2: height - 22}), () => mark.text));
      }
    }
    out.addEventListener("wheel", (event) => {
      if (event.ctrlKey) {
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, state.from + (event.offsetX - left) / w * (state.to - state.from));
      }
    }, {passive: false});
    out.addEventListener("pointerdown", (event) => {
      const from = state.from, to = state.to, x = event.clientX;
      const move = (e) => {
        const by = Math.min(Math.max(-(e.clientX - x) / w * (to - from), -from), end - to);
        if (Math.abs(e.clientX - x) > 3) {
          [state.from, state.to] = [from + by, to + by];
          box.again();
        }
      };
      const up = () => (removeEventListener("pointermove", move), removeEventListener("pointerup", up));
      addEventListener("pointermove", move);
      addEventListener("pointerup", up);
    });
    return out;
  });
  return el("div", {},
    el("div", {class: "bar"}, el("button", {onclick: () => zoom(0.5)}, "Zoom in"), el("button", {onclick: () => zoom(2)}, "Zoom out"),
      el("button", {onclick: () => zoom(1e9)}, "All"), el("span", {class: "legend"}, "Arrow keys select, + and − zoom, dragging moves.")),
    el("div", {tabindex: 0, role: "application", "aria-label": label, onkeydown: keys}, box), detail);
}

/* Header and sections; what fails in one does not hide the others. */
function page({title, sub, sections, foot}) {
  const made = sections.map((make) => {
    try {
      return make();
    } catch (error) {
      return el("section", {class: "card"}, el("h2", {}, "A part of this page could not be drawn"), String(error));
    }
  }).filter((node) => node);
  const titled = made.filter((node) => node.id && node.querySelector("h2"));
  document.body.append(
    el("header", {class: "top"}, el("h1", {}, title), el("span", {class: "sub"}, sub),
      el("nav", {"aria-label": "Sections"}, titled.map((node) => el("a", {href: `#${node.id}`}, node.querySelector("h2").textContent)))),
    el("main", {}, made, el("footer", {}, foot)), el("div", {id: "tip", role: "tooltip", hidden: ""}));
  document.getElementById("tip").hidden = true;
  whenShown.forEach((show) => show());
}
